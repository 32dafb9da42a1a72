// Window rows: packing to e4m3 codes with a power-of-two scale per 32 values, and the rings that
// keep the newest of them.
//
// Bytes: pack_window reads an act row and writes 33 bytes per 32 values; store_window copies them.
#include "backend/cuda/common.cuh"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/window.h"
#include "formats/quantize.h"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
static_assert(kActBlock == kWarp, "a warp packs a block");

template <typename T>
__global__ void __launch_bounds__(kThreads)
    pack_window_kernel(const T* kv, int dim, uint8_t* packed, int64_t row_bytes) {
  grid_wait();
  grid_launch();
  const int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint8_t* codes = packed + row * row_bytes;
  for (int block = static_cast<int>(threadIdx.x) / kWarp; block < dim / kActBlock;
       block += kWarps) {
    const int i = block * kActBlock + lane;
    const float value = widen(kv[row * dim + i]);
    const float amax = fmaxf(warp_max(fabsf(value)), formats_detail::kActMinimum);
    const uint8_t scale = e8m0_ceil_scale(amax, kInverse448);
    codes[i] = e4m3_bits(formats_detail::clamp(value / e8m0_value(scale), kE4m3Max));
    if (lane == 0) codes[dim + block] = scale;
  }
}

template <typename Unit>
__global__ void store_window_kernel(const Unit* packed, int units, const int32_t* pos,
                                    const int32_t* slot, const int32_t* end_row, int ring_layer,
                                    KvView kv) {
  grid_wait();
  grid_launch();
  const int row = static_cast<int>(blockIdx.x);
  if (end_row[row] - row > kv.ring_rows) return;  // a later row of the step takes the place
  auto* to = reinterpret_cast<Unit*>(kv.ring_row(slot[row], ring_layer, pos[row]));
  for (int i = static_cast<int>(threadIdx.x); i < units; i += static_cast<int>(blockDim.x))
    to[i] = packed[static_cast<int64_t>(row) * units + i];
}

template <typename Unit>
void store_units(const Launch& launch, Tensor packed, const StepRows& step, int ring_layer,
                 const KvView& kv) {
  start(store_window_kernel<Unit>, dim3(static_cast<unsigned>(step.rows)), dim3(kWarp), 0,
        launch.stream, static_cast<const Unit*>(packed.data),
        static_cast<int>(kv.window_row_bytes / sizeof(Unit)), step.pos, step.slot, step.end_row,
        ring_layer, kv);
}

}  // namespace

void pack_window(const Launch& launch, Tensor kv, Tensor packed) {
  if (kv.rows == 0) return;
  with_act(launch.numerics, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    start(pack_window_kernel<T>, dim3(static_cast<unsigned>(kv.rows)), dim3(kThreads), 0,
          launch.stream, static_cast<const T*>(kv.data), static_cast<int>(kv.cols), packed.u8(),
          packed.cols);
  });
}

void store_window(const Launch& launch, Tensor packed, const StepRows& step, int ring_layer,
                  const KvView& kv) {
  if (step.rows == 0) return;
  if (kv.window_row_bytes % sizeof(uint4) == 0) {
    store_units<uint4>(launch, packed, step, ring_layer, kv);
  } else {
    store_units<uint8_t>(launch, packed, step, ring_layer, kv);
  }
}

}  // namespace peregrine::cuda
