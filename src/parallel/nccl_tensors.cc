#include "parallel/nccl_tensors.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/launch.h"
#include "base/fail.h"
#include "parallel/nccl_columns.h"

namespace peregrine {

NcclTensors::Buffer::~Buffer() {
  if (data_) cudaFree(data_);
}

void* NcclTensors::Buffer::reserve(size_t bytes, cudaStream_t stream) {
  bytes = std::max<size_t>(bytes, 1);
  if (bytes <= bytes_) return data_;
  cuda::check(cudaStreamSynchronize(stream), "waiting for the shares of ranks");
  if (data_) cuda::check(cudaFree(std::exchange(data_, nullptr)), "freeing the shares of ranks");
  bytes_ = 0;
  cuda::check(cudaMalloc(&data_, bytes), "memory for the shares of ranks");
  bytes_ = bytes;
  return data_;
}

NcclTensors::NcclTensors(std::unique_ptr<Communicator> communicator)
    : RankTensors(std::move(communicator)) {}

NcclTensors::~NcclTensors() {
  if (stream_) cudaDeviceSynchronize();
}

NcclCommunicator& NcclTensors::nccl(Backend& backend) {
  if (nccl_) return *nccl_;
  auto* cuda = dynamic_cast<CudaBackend*>(&backend);
  if (!cuda)
    fail(ErrorKind::kInvalidArgument, "tensor parallelism over NCCL on {}: expected cuda",
         backend.name());
  stream_ = cuda->stream();
  const std::vector<std::byte> made =
      leads() ? NcclCommunicator::make_id() : std::vector<std::byte>();
  const auto id = communicator().broadcast({.tag = "NCCL id"}, /*root=*/0, made);
  nccl_ = std::make_unique<NcclCommunicator>(id, split().rank(), split().ranks(), stream_);
  return *nccl_;
}

void* NcclTensors::all_blocks(const void* mine, size_t bytes) {
  void* all = gathered_.reserve(static_cast<size_t>(split().ranks()) * bytes, stream_);
  nccl_->all_gather(mine, bytes, all);
  return all;
}

Tensor NcclTensors::act_rows(Buffer& buffer, int64_t rows, int64_t cols, Elem elem) {
  Tensor t{nullptr, rows, cols, elem};
  t.data = buffer.reserve(t.bytes(), stream_);
  return t;
}

// Blocks are as wide as the widest share.
void NcclTensors::gather(Backend& backend, const GatherArgs& args) {
  nccl(backend);
  const int64_t rows = args.whole.rows, cols = args.whole.cols;
  int64_t widest = 0;
  for (int rank = 0; rank < split().ranks(); ++rank)
    widest = std::max(widest, split().share_of(rank, cols, args.unit).size());
  const size_t bytes = static_cast<size_t>(rows * widest) * elem_bytes(args.whole.elem);
  void* block = block_.reserve(bytes, stream_);
  cuda::check(
      cudaMemcpyAsync(block, args.mine.data, args.mine.bytes(), cudaMemcpyDeviceToDevice, stream_),
      "copying a rank's share");
  const void* all = all_blocks(block, bytes);
  if (args.leader_only && !leads()) return;
  spread_columns(all, bytes, {.cols = cols, .unit = args.unit, .ranks = split().ranks()},
                 args.whole, stream_);
}

void NcclTensors::embed(Backend& backend, const Weight& table, int64_t whole_rows,
                        const int32_t* tokens, int copies, Tensor x) {
  nccl(backend);
  auto* local = room<int32_t>(local_tokens_, x.rows);
  auto* places = room<int32_t>(places_, x.rows * copies);
  place_tokens(tokens, static_cast<int>(x.rows), copies,
               {.cols = whole_rows, .unit = kSplitRows, .ranks = split().ranks()}, split().rank(),
               local, places, stream_);
  const Tensor mine = act_rows(embeddings_, x.rows, table.in, x.elem);
  if (table.out > 0) backend.embed(table, local, 1, mine);
  void* all = all_blocks(mine.data, mine.bytes());
  backend.gather_rows({all, x.rows * split().ranks(), table.in, x.elem}, places,
                      {x.data, x.rows * copies, table.in, x.elem});
}

void NcclTensors::experts(Backend& backend, int layer, const ExpertsArgs& args) {
  nccl(backend);
  const Expert& shared = *args.shared;
  const int64_t rows = args.u.rows, dim = args.out.cols, active = args.ids.cols;
  const Elem act = args.u.elem;

  const Tensor gate = act_rows(gate_, rows, shared.w1.out, act);
  if (shared.w1.out > 0) {
    const Tensor up = act_rows(up_, rows, shared.w3.out, act);
    backend.linear(args.u, shared.w1, LinearKind::kQuantised, gate);
    backend.linear(args.u, shared.w3, LinearKind::kQuantised, up);
    backend.gate(gate, up);
  }
  const Tensor hidden = act_rows(hidden_, rows, shared.w2.in, act);
  gather(
      backend,
      {.tag = "shared expert", .layer = layer, .mine = gate, .whole = hidden, .unit = kSplitRows});
  const Tensor part = act_rows(shared_part_, rows, shared.w2.out, act);
  if (shared.w2.out > 0) backend.linear(hidden, shared.w2, LinearKind::kQuantised, part);
  const Tensor shared_result = act_rows(shared_, rows, dim, act);
  gather(backend, {.tag = "shared result",
                   .layer = layer,
                   .mine = part,
                   .whole = shared_result,
                   .unit = kSplitRows});

  const auto experts = static_cast<int64_t>(args.routed.size());
  const ColumnShares shares{.cols = experts, .unit = 1, .ranks = split().ranks()};
  const Slice held = split().share(experts, 1);
  const int64_t pairs = rows * active;
  auto* rows_of = room<int32_t>(pair_rows_of_, pairs);
  auto* ids = room<int32_t>(pair_ids_, pairs);
  auto* weights = room<float>(pair_weights_, pairs);
  place_pairs(args.ids, args.weights, shares, split().rank(), rows_of, ids, weights, stream_);
  const Tensor inputs = act_rows(pair_inputs_, pairs, args.u.cols, act);
  backend.gather_rows(args.u, rows_of, inputs);
  const Tensor results = act_rows(pair_results_, pairs, dim, act);
  if (held.size() > 0)
    backend.experts({.u = inputs,
                     .ids = {ids, pairs, 1, Elem::kI32},
                     .weights = {weights, pairs, 1, Elem::kF32},
                     .routed = args.routed.subspan(static_cast<size_t>(held.begin),
                                                   static_cast<size_t>(held.size())),
                     .shared = nullptr,
                     .out = results});
  const void* all = all_blocks(results.data, results.bytes());
  add_pairs(all, results.bytes(), args.ids, shares, shared_result, args.out, stream_);
}

}  // namespace peregrine
