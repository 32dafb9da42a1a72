#include "parallel/rank_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "formats/bf16.h"
#include "formats/quantize.h"
#include "parallel/distribution.h"

namespace peregrine {
namespace {

// A dispatch message: counts, then the rows, then the pairs.
struct DispatchHeader {
  int32_t rows = 0;
  int32_t pairs = 0;
};
// A row for one of the receiver's experts.
struct Pair {
  int32_t row = 0;   // in the message
  int32_t slot = 0;  // of the receiver
  float weight = 0;
};

void append(Bytes& bytes, const void* data, size_t size) {
  const auto* p = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), p, p + size);
}

size_t row_bytes(int64_t dim, bool quantised) {
  return static_cast<size_t>(quantised ? dim + dim / kActBlock
                                       : dim * static_cast<int64_t>(sizeof(float)));
}

void append_row(Bytes& bytes, const float* row, int64_t dim, bool quantised) {
  if (!quantised) return append(bytes, row, static_cast<size_t>(dim) * sizeof(float));
  const size_t at = bytes.size();
  bytes.resize(at + row_bytes(dim, true));
  auto* codes = reinterpret_cast<uint8_t*>(bytes.data() + at);
  act_quant_row(row, dim, codes, codes + dim);
}

void read_row(const std::byte* bytes, int64_t dim, bool quantised, float* row) {
  if (!quantised) {
    std::memcpy(row, bytes, static_cast<size_t>(dim) * sizeof(float));
    return;
  }
  const auto* codes = reinterpret_cast<const uint8_t*>(bytes);
  act_dequant_row(codes, codes + dim, dim, row);
}

}  // namespace

RankExperts::RankExperts(std::unique_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)),
      outgoing_(static_cast<size_t>(communicator_->ranks())),
      pairs_of_rank_(static_cast<size_t>(communicator_->ranks())) {}

Slice RankExperts::held(int experts) const {
  return expert_share(experts, communicator_->rank(), communicator_->ranks());
}

void RankExperts::balance(std::vector<int> experts_of_layer, ExpertReader reader,
                          const BalanceOptions& options) {
  balance_ = std::make_unique<ExpertBalance>(*communicator_, std::move(experts_of_layer),
                                             std::move(reader), options);
}

// Where a layer's experts are: at first those of held(), whose weights are in `routed`.
LayerExperts& RankExperts::layer(int layer, std::span<const Expert> routed) {
  const auto l = static_cast<size_t>(layer);
  if (layers_.size() <= l) layers_.resize(l + 1);
  LayerExperts& it = layers_[l];
  if (!it.copies.empty()) return it;
  const auto experts = static_cast<int>(routed.size());
  it.turns.resize(routed.size());
  for (int rank = 0; rank < communicator_->ranks(); ++rank) {
    const Slice range = expert_share(experts, rank, communicator_->ranks());
    for (int slot = 0; slot < range.size(); ++slot) {
      const auto expert = static_cast<int32_t>(range.begin) + slot;
      it.copies.push_back({{rank, slot}});
      if (rank != communicator_->rank()) continue;
      it.expert_of_slot.push_back(expert);
      it.weights.push_back(routed[static_cast<size_t>(expert)]);
    }
  }
  return it;
}

OpenPass RankExperts::open_pass(Pass mine, bool has_rows) {
  if (mine == Pass::kEncoder) communicator_->set_step(steps_ + 1);
  const std::byte vote[] = {static_cast<std::byte>(mine), static_cast<std::byte>(has_rows),
                            static_cast<std::byte>(balance_ ? balance_->state() : 0)};
  const auto votes = communicator_->all_gather({.tag = "pass"}, vote);
  OpenPass open;
  std::vector<uint8_t> states;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const auto theirs = static_cast<Pass>(votes[rank].at(0));
    open.any_rows = open.any_rows || votes[rank].at(1) != std::byte{0};
    states.push_back(static_cast<uint8_t>(votes[rank].at(2)));
    if (theirs == Pass::kNone) continue;
    if (open.pass != Pass::kNone && open.pass != theirs)
      communicator_->stop_group(fmt::format("rank {} opens pass {}, another rank pass {}", rank,
                                            static_cast<int>(theirs), static_cast<int>(open.pass)));
    open.pass = theirs;
  }
  if (open.pass == Pass::kEncoder && open.any_rows) {
    communicator_->set_step(++steps_);
    if (balance_) balance_->begin_step(states, layers_);
  }
  return open;
}

void RankExperts::experts(Backend& backend, int layer, const ExpertsArgs& args) {
  LayerExperts& held = this->layer(layer, args.routed);
  const WeightFormat format = held.weights.front().w1.format;
  const bool quantised = backend.numerics() == Numerics::kBF16 &&
                         (format == WeightFormat::kF8 || format == WeightFormat::kF4);
  dispatch(layer, held, args, quantised);
  compute(backend, held, args);
  combine(backend, layer, held, args);
}

// Every row once to each rank that holds one of its experts, with the experts there.
void RankExperts::dispatch(int layer, LayerExperts& held, const ExpertsArgs& args, bool quantised) {
  const int64_t dim = args.out.cols, active = args.ids.cols;
  const auto pairs_here = static_cast<size_t>(args.u.rows * active);
  places_.resize(pairs_here);
  chosen_.resize(pairs_here);
  for (size_t i = 0; i < pairs_here; ++i) chosen_[i] = held.next_copy(args.ids.i32()[i]);
  if (balance_ && pairs_here > 0) balance_->count(layer, {args.ids.i32(), pairs_here});
  for (int rank = 0; rank < communicator_->ranks(); ++rank) {
    DispatchHeader header;
    Bytes& bytes = outgoing_[static_cast<size_t>(rank)];
    bytes.clear();
    append(bytes, &header, sizeof(header));
    std::vector<Pair> pairs;
    for (int64_t r = 0; r < args.u.rows; ++r) {
      bool sent = false;
      for (int64_t k = 0; k < active; ++k) {
        const auto at = static_cast<size_t>(r * active + k);
        if (chosen_[at].rank != rank) continue;
        if (!sent) {
          append_row(bytes, args.u.f32() + r * dim, dim, quantised);
          ++header.rows;
          sent = true;
        }
        places_[at] = {rank, header.pairs++};
        pairs.push_back({header.rows - 1, chosen_[at].slot, args.weights.f32()[at]});
      }
    }
    append(bytes, pairs.data(), pairs.size() * sizeof(Pair));
    std::memcpy(bytes.data(), &header, sizeof(header));
  }
  count_sent();
  const auto arrived = communicator_->all_to_all(
      {.tag = "dispatch", .layer = layer, .shape = static_cast<uint64_t>(dim)}, outgoing_);

  pair_rows_.clear();
  pair_ids_.clear();
  pair_weights_.clear();
  const size_t bytes_a_row = row_bytes(dim, quantised);
  for (size_t rank = 0; rank < arrived.size(); ++rank) {
    const std::byte* at = arrived[rank].data();
    DispatchHeader header;
    std::memcpy(&header, at, sizeof(header));
    const std::byte* rows = at + sizeof(header);
    const std::byte* pairs = rows + static_cast<size_t>(header.rows) * bytes_a_row;
    pairs_of_rank_[rank] = header.pairs;
    for (int i = 0; i < header.pairs; ++i) {
      Pair pair;
      std::memcpy(&pair, pairs + static_cast<size_t>(i) * sizeof(Pair), sizeof(Pair));
      const size_t end = pair_rows_.size();
      pair_rows_.resize(end + static_cast<size_t>(dim));
      read_row(rows + static_cast<size_t>(pair.row) * bytes_a_row, dim, quantised,
               pair_rows_.data() + end);
      pair_ids_.push_back(pair.slot);
      pair_weights_.push_back(pair.weight);
    }
  }
  if (balance_) balance_->count_computed(layer, static_cast<int64_t>(pair_ids_.size()));
}

// Each pair as a row of its own with one expert: its result is not yet added to others.
void RankExperts::compute(Backend& backend, const LayerExperts& held, const ExpertsArgs& args) {
  const auto pairs = static_cast<int64_t>(pair_ids_.size());
  const int64_t dim = args.out.cols;
  pair_results_.resize(static_cast<size_t>(pairs * dim));
  if (pairs == 0) return;
  backend.experts({.u = {pair_rows_.data(), pairs, dim, Elem::kF32},
                   .ids = {pair_ids_.data(), pairs, 1, Elem::kI32},
                   .weights = {pair_weights_.data(), pairs, 1, Elem::kF32},
                   .routed = held.weights,
                   .shared = nullptr,
                   .out = {pair_results_.data(), pairs, dim, Elem::kF32}});
}

// Results home, and their sum.
void RankExperts::combine(Backend& backend, int layer, const LayerExperts& held,
                          const ExpertsArgs& args) {
  const int64_t dim = args.out.cols, active = args.ids.cols;
  const bool rounds = backend.numerics() == Numerics::kBF16;  // results are bf16 numbers
  const size_t result_bytes = static_cast<size_t>(dim) * (rounds ? 2 : 4);
  const float* result = pair_results_.data();
  for (size_t rank = 0; rank < outgoing_.size(); ++rank) {
    Bytes& bytes = outgoing_[rank];
    const size_t values = static_cast<size_t>(pairs_of_rank_[rank]) * static_cast<size_t>(dim);
    bytes.resize(values * (rounds ? 2 : 4));
    if (rounds) {
      auto* to = reinterpret_cast<uint16_t*>(bytes.data());
      for (size_t i = 0; i < values; ++i) to[i] = bf16_bits(result[i]);
    } else if (values > 0) {
      std::memcpy(bytes.data(), result, bytes.size());
    }
    result += values;
  }
  count_sent();
  const auto arrived = communicator_->all_to_all(
      {.tag = "combine", .layer = layer, .shape = static_cast<uint64_t>(dim)}, outgoing_);
  if (args.u.rows == 0) return;

  // The shared expert alone: no routed ones, so that nothing is added before it.
  shared_results_.resize(static_cast<size_t>(args.u.rows * dim));
  ExpertsArgs shared = args;
  shared.ids.cols = shared.weights.cols = 0;
  shared.routed = std::span(held.weights).first(1);
  shared.out = {shared_results_.data(), args.u.rows, dim, Elem::kF32};
  backend.experts(shared);

  for (int64_t r = 0; r < args.u.rows; ++r) {
    float* out = args.out.f32() + r * dim;
    std::fill(out, out + dim, 0.0f);
    for (int64_t k = 0; k < active; ++k) {  // ids ascend
      const Place& place = places_[static_cast<size_t>(r * active + k)];
      const std::byte* from = arrived[static_cast<size_t>(place.rank)].data() +
                              static_cast<size_t>(place.index) * result_bytes;
      if (rounds) {
        const auto* values = reinterpret_cast<const uint16_t*>(from);
        for (int64_t i = 0; i < dim; ++i) out[i] += bf16_value(values[i]);
      } else {
        const auto* values = reinterpret_cast<const float*>(from);
        for (int64_t i = 0; i < dim; ++i) out[i] += values[i];
      }
    }
    const float* last = shared_results_.data() + r * dim;
    for (int64_t i = 0; i < dim; ++i) {
      out[i] += last[i];
      if (rounds) out[i] = round_bf16(out[i]);
    }
  }
}

void RankExperts::count_sent() {
  for (size_t rank = 0; rank < outgoing_.size(); ++rank)
    if (static_cast<int>(rank) != communicator_->rank())
      bytes_sent_ += static_cast<int64_t>(outgoing_[rank].size());
}

}  // namespace peregrine
