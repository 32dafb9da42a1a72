// The router: a block a row (spec: model.md 5.11).
#include "backend/cuda/common.cuh"
#include "backend/cuda/expert_lists.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/pdl.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kWeightSumFloor = 1e-20f;
constexpr float kSoftplusLinear = 20.0f;  // above it softplus(z) = z

struct Scoring {
  ScoreFunc function;
  float temperature;
  float scale;
  bool normalise;
};

// Unbiased scores of one row, made by the whole block.
__device__ void score(const float* z, const Scoring& scoring, int n, float* scores) {
  const int tid = threadIdx.x;
  if (scoring.function != ScoreFunc::kSoftmax) {
    for (int e = tid; e < n; e += kThreads) {
      const float value = z[e] / scoring.temperature;
      scores[e] = scoring.function == ScoreFunc::kSigmoid
                      ? 1.0f / (1.0f + expf(-value))
                      : sqrtf(value > kSoftplusLinear ? value : log1pf(expf(value)));
    }
    return;
  }
  if (tid >= kWarp) return;
  float largest = -INFINITY;
  for (int e = tid; e < n; e += kWarp) largest = fmaxf(largest, z[e] / scoring.temperature);
  largest = warp_max(largest);
  float sum = 0;
  for (int e = tid; e < n; e += kWarp) {
    scores[e] = expf(z[e] / scoring.temperature - largest);
    sum += scores[e];
  }
  sum = warp_sum(sum);
  for (int e = tid; e < n; e += kWarp) scores[e] /= sum;
}

// Larger keys for larger scores; NaN counts as -inf, and no key is 0.
__device__ uint32_t key_of(float score) {
  if (score != score) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// One warp marks the k best experts by score + bias: higher score, then lower number. A lane keeps
// the keys of experts lane, lane + 32, ... in registers.
__device__ void choose(const float* scores, const float* bias, int n, int k, bool* taken) {
  constexpr int kMine = kMaxExperts / kWarp;
  const int lane = threadIdx.x;
  uint32_t keys[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int e = i * kWarp + lane;
    keys[i] = e < n ? key_of(scores[e] + bias[e]) : 0;
  }
  for (int round = 0; round < k; ++round) {
    uint32_t best = 0;
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (keys[i] > best) {
        best = keys[i];
        mine = i * kWarp + lane;
      }
    }
    const uint32_t highest = __reduce_max_sync(0xFFFFFFFFu, best);
    const uint32_t winner =
        __reduce_min_sync(0xFFFFFFFFu, best == highest ? static_cast<uint32_t>(mine) : 0xFFFFFFFFu);
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      if (static_cast<uint32_t>(i * kWarp + lane) == winner) keys[i] = 0;
    if (lane == 0) taken[winner] = true;
  }
}

__global__ void __launch_bounds__(kThreads)
    route_kernel(const float* logits, Router router, const uint8_t* is_image, Scoring scoring,
                 int32_t* ids, float* weights) {
  __shared__ float scores[kMaxExperts];
  __shared__ bool taken[kMaxExperts];
  __shared__ int32_t chosen[kMaxActive];
  const int n = router.n_experts, k = router.n_active;
  const int64_t row = blockIdx.x;
  grid_wait();
  grid_launch();
  score(logits + row * n, scoring, n, scores);
  for (int e = threadIdx.x; e < n; e += kThreads) taken[e] = false;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;

  const int lane = threadIdx.x;
  const bool image = is_image != nullptr && is_image[row] != 0 && router.bias_image != nullptr;
  choose(scores, image ? router.bias_image : router.bias, n, k, taken);
  __syncwarp();
  // In ascending order: an expert's place is the number of lower ones.
  int before = 0;
  for (int base = 0; base < n; base += kWarp) {
    const int e = base + lane;
    const bool mine = e < n && taken[e];
    const unsigned all = __ballot_sync(0xFFFFFFFFu, mine);
    if (mine) chosen[before + __popc(all & ((1u << lane) - 1))] = e;
    before += __popc(all);
  }
  __syncwarp();
  float divisor = 1;
  if (k > 1 && scoring.normalise) {
    float sum = 0;
    for (int i = 0; i < k; ++i) sum += scores[chosen[i]];
    divisor = sum + kWeightSumFloor;
  }
  if (lane < k) {
    ids[row * k + lane] = chosen[lane];
    weights[row * k + lane] = scores[chosen[lane]] / divisor * scoring.scale;
  }
}

}  // namespace

void route(const Launch& launch, Tensor logits, const Router& router, const uint8_t* is_image,
           Tensor ids, Tensor weights) {
  if (logits.rows == 0) return;
  const ModelConfig& c = launch.config;
  start(route_kernel, dim3(static_cast<unsigned>(logits.rows)), dim3(kThreads), 0, launch.stream,
        static_cast<const float*>(logits.f32()), router, is_image,
        Scoring{c.score_func, c.gate_temp, c.route_scale, c.norm_topk_prob}, ids.i32(),
        weights.f32());
}

}  // namespace peregrine::cuda
