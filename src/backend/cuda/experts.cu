#include "backend/cuda/experts.h"

#include <algorithm>

#include "backend/cuda/common.cuh"
#include "backend/cuda/expert_kernels.h"
#include "backend/cuda/experts_plain.h"
#include "backend/cuda/pdl.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kStreamRows = 64;    // up to here the kernels for few rows, in tiles of 16
constexpr int64_t kRowsAtOnce = 4096;  // bounds the scratch memory

// out[r] = the outputs of its slots in ascending order, the shared expert's last; bf16.
__global__ void sum_kernel(const uint16_t* outputs, int slots, int64_t dim, int64_t n,
                           uint16_t* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  grid_wait();
  grid_launch();
  if (i >= n) return;
  const int64_t row = i / dim;
  float sum = 0;
  for (int slot = 0; slot < slots; ++slot)
    sum += bf16_value(outputs[(row * slots + slot) * dim + i % dim]);
  out[i] = bf16_bits(sum);
}

bool is_codes(const Weight& w) {
  return (w.format == WeightFormat::kF8 || w.format == WeightFormat::kF4) && w.in % 32 == 0;
}
bool is_codes(const Expert& e) { return is_codes(e.w1) && is_codes(e.w2) && is_codes(e.w3); }

Product product_of(const Expert& e) {
  return e.w1.format == WeightFormat::kF4 ? Product::kF4 : Product::kF8;
}

// The tensor core kernels take quantised experts of one inner width, the shared one in F8.
bool fits_tensor_cores(const Launch& launch, const ExpertsArgs& args) {
  const Expert& first = args.routed.front();
  if (launch.numerics != Numerics::kBF16 || !is_codes(first)) return false;
  return args.shared == nullptr ||
         (is_codes(*args.shared) && args.shared->w1.format == WeightFormat::kF8 &&
          args.shared->w1.out == first.w1.out);
}

void run_rows(const Launch& launch, const ExpertsArgs& args, const Expert* table) {
  const int64_t rows = args.u.rows;
  const int active = static_cast<int>(args.ids.cols);
  const bool chunk = rows > kStreamRows;
  const InputLayout layout = chunk ? InputLayout::kInstructions : InputLayout::kRows;
  ExpertStep step;
  step.table = table;
  if (args.shared != nullptr) step.shared = *args.shared;
  step.rows = rows;
  step.dim = args.u.cols;
  step.inner = args.routed.front().w1.out;
  step.routed_product = product_of(args.routed.front());
  step.weights = args.weights.f32();
  step.swiglu_limit = launch.config.swiglu_limit;

  std::byte* base = nullptr;
  for (int pass = 0; pass < 2; ++pass) {  // measure, then place and run
    Carve memory(base);
    const auto pairs = static_cast<size_t>(rows * (active + (args.shared != nullptr ? 1 : 0)));
    auto* routed_input = memory.take<std::byte>(prepared_bytes(rows, step.dim));
    auto* shared_input =
        memory.take<std::byte>(args.shared != nullptr ? prepared_bytes(rows, step.dim) : 0);
    auto* inner_input =
        memory.take<std::byte>(prepared_bytes(static_cast<int64_t>(pairs), step.inner));
    step.gated = memory.take<uint16_t>(pairs * static_cast<size_t>(step.inner));
    step.output = memory.take<uint16_t>(pairs * static_cast<size_t>(step.dim));
    step.lists =
        make_lists(launch, args.ids.i32(), rows, active, static_cast<int>(args.routed.size()),
                   args.shared != nullptr, chunk ? kChunkTilePairs : kTilePairs, memory);
    if (pass == 0) {
      base = launch.scratch.get(memory.used());
      continue;
    }
    const auto* u = static_cast<const uint16_t*>(args.u.data);
    if (args.shared != nullptr) {
      const PreparedTwice inputs = prepare_twice(launch, step.routed_product, u, rows, step.dim,
                                                 layout, routed_input, shared_input);
      step.routed_input = inputs.a;
      step.shared_input = inputs.b;
    } else {
      step.routed_input =
          prepare(launch, step.routed_product, true, u, rows, step.dim, layout, routed_input);
    }
    chunk ? expert_chunk_gate_up(launch, step) : expert_rows_gate_up(launch, step);
    step.inner_input =
        prepare_pairs(launch, step.routed_product, args.shared != nullptr ? step.lists.slots : 0,
                      step.gated, static_cast<int64_t>(pairs), step.inner, layout, inner_input);
    chunk ? expert_chunk_down(launch, step) : expert_rows_down(launch, step);
  }
  const int64_t n = rows * step.dim;
  start(sum_kernel, dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)), dim3(kThreads), 0,
        launch.stream, step.output, step.lists.slots, step.dim, n,
        static_cast<uint16_t*>(args.out.data));
}

}  // namespace

void experts(const Launch& launch, const ExpertsArgs& args, const Expert* table) {
  if (args.u.rows == 0) return;
  const bool tensor_cores = fits_tensor_cores(launch, args);
  for (int64_t row = 0; row < args.u.rows; row += kRowsAtOnce) {
    const int64_t n = std::min(kRowsAtOnce, args.u.rows - row);
    ExpertsArgs part = args;
    part.u = args.u.slice(row, n);
    part.ids = args.ids.slice(row, n);
    part.weights = args.weights.slice(row, n);
    part.out = args.out.slice(row, n);
    tensor_cores ? run_rows(launch, part, table) : experts_plain(launch, part, table);
  }
}

}  // namespace peregrine::cuda
