#include "parallel/distribution.h"

#include "base/fail.h"
#include "checkpoint/checkpoint.h"

namespace peregrine {
namespace {

int64_t stored_bytes(const TensorSpec& spec) {
  int64_t elements = 1;
  for (const int64_t size : spec.shape) elements *= size;
  return elements * dtype_bits(spec.dtypes.front()) / 8;
}

}  // namespace

Slice expert_share(int experts, int rank, int ranks) {
  if (experts < ranks)
    fail(ErrorKind::kInvalidArgument, "{} experts for {} ranks: expected at least one each",
         experts, ranks);
  return TensorSplit(rank, ranks).share(experts, 1);
}

std::vector<RankShare> plan_ranks(const ModelConfig& config, int ranks) {
  std::vector<RankShare> shares;
  for (int rank = 0; rank < ranks; ++rank) {
    RankShare& share = shares.emplace_back();
    share.experts = expert_share(config.n_routed_experts, rank, ranks);
    if (config.has_drafter())
      share.drafter_experts = expert_share(config.dspark_n_routed_experts, rank, ranks);
  }
  for (const TensorSpec& spec : tensor_table(config)) {
    if (spec.optional) continue;
    const int64_t bytes = stored_bytes(spec);
    const auto routed = routed_expert_of(config, spec.name);
    for (RankShare& share : shares) {
      const bool drafter = spec.name.starts_with("mtp.");
      if (!routed) {
        share.other_bytes += bytes;
      } else if ((drafter ? share.drafter_experts : share.experts).holds(routed->expert)) {
        share.expert_bytes += bytes;
      }
    }
  }
  return shares;
}

std::vector<TensorShare> plan_tensor_ranks(const ModelConfig& config, int ranks) {
  check_split(config);
  std::vector<TensorShare> shares;
  for (int rank = 0; rank < ranks; ++rank) {
    const TensorSplit split(rank, ranks);
    TensorShare& share = shares.emplace_back();
    share.groups = split.groups(config);
    share.heads = split.heads(config);
    share.experts = split.share(config.n_routed_experts, 1);
    share.vocabulary = split.share(config.vocab_size, kSplitRows);
    if (config.has_drafter())
      share.drafter_experts = split.share(config.dspark_n_routed_experts, 1);
    if (config.has_engram()) share.engram_columns = split.engram_columns(config);
  }
  // Which tensors are shared shows in the cut among as many ranks as nobody has.
  const TensorSplit finest(0, 1 << 20);
  for (const TensorSpec& spec : tensor_table(config)) {
    if (spec.optional) continue;
    const int64_t rows = spec.shape.front(), bytes = stored_bytes(spec);
    const bool whole = finest.rows(config, spec.name, rows).size() == rows;
    for (int rank = 0; rank < ranks; ++rank) {
      TensorShare& share = shares[static_cast<size_t>(rank)];
      if (whole) {
        share.other_bytes += bytes;
      } else {
        share.shared_bytes +=
            bytes / rows * TensorSplit(rank, ranks).rows(config, spec.name, rows).size();
      }
    }
  }
  return shares;
}

}  // namespace peregrine
