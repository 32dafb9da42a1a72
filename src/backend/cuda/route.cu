// The router: a warp a row (spec: model.md 5.11).
#include "backend/cuda/common.cuh"
#include "backend/cuda/expert_lists.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/pdl.cuh"

namespace peregrine::cuda {
namespace {

constexpr float kWeightSumFloor = 1e-20f;
constexpr float kSoftplusLinear = 20.0f;  // above it softplus(z) = z

struct Scoring {
  ScoreFunc function;
  float temperature;
  float scale;
  bool normalise;
};

// Unbiased scores of one row.
__device__ void score(const float* z, const Scoring& scoring, int n, float* scores) {
  const int lane = threadIdx.x;
  if (scoring.function == ScoreFunc::kSoftmax) {
    float largest = -INFINITY;
    for (int e = lane; e < n; e += kWarp) largest = fmaxf(largest, z[e] / scoring.temperature);
    largest = warp_max(largest);
    float sum = 0;
    for (int e = lane; e < n; e += kWarp) {
      scores[e] = expf(z[e] / scoring.temperature - largest);
      sum += scores[e];
    }
    sum = warp_sum(sum);
    for (int e = lane; e < n; e += kWarp) scores[e] /= sum;
    return;
  }
  for (int e = lane; e < n; e += kWarp) {
    const float value = z[e] / scoring.temperature;
    scores[e] = scoring.function == ScoreFunc::kSigmoid
                    ? 1.0f / (1.0f + expf(-value))
                    : sqrtf(value > kSoftplusLinear ? value : log1pf(expf(value)));
  }
}

// Takes the best remaining expert of `biased`: higher score, then lower number.
__device__ int take_best(float* biased, bool* taken, int n) {
  const int lane = threadIdx.x;
  float best = -INFINITY;
  int index = n;
  for (int e = lane; e < n; e += kWarp) {
    if (!taken[e] && (index == n || biased[e] > best)) {
      best = biased[e];
      index = e;
    }
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, best, distance);
    const int other_index = __shfl_xor_sync(0xFFFFFFFFu, index, distance);
    const bool better =
        other_index < n && (index == n || other > best || (other == best && other_index < index));
    if (better) {
      best = other;
      index = other_index;
    }
  }
  if (lane == 0) taken[index] = true;
  __syncwarp();
  return index;
}

__global__ void __launch_bounds__(kWarp)
    route_kernel(const float* logits, Router router, const uint8_t* is_image, Scoring scoring,
                 int32_t* ids, float* weights) {
  __shared__ float scores[kMaxExperts], biased[kMaxExperts];
  __shared__ bool taken[kMaxExperts];
  const int n = router.n_experts, k = router.n_active, lane = threadIdx.x;
  const int64_t row = blockIdx.x;
  grid_wait();
  grid_launch();
  score(logits + row * n, scoring, n, scores);
  const bool image = is_image != nullptr && is_image[row] != 0 && router.bias_image != nullptr;
  const float* bias = image ? router.bias_image : router.bias;
  for (int e = lane; e < n; e += kWarp) {
    const float value = scores[e] + bias[e];
    biased[e] = value == value ? value : -INFINITY;
    taken[e] = false;
  }
  __syncwarp();
  for (int i = 0; i < k; ++i) take_best(biased, taken, n);

  // The chosen in ascending order, a thread each: its place is the number of lower ones.
  __shared__ int32_t chosen[kMaxActive];
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
  start(route_kernel, dim3(static_cast<unsigned>(logits.rows)), dim3(kWarp), 0, launch.stream,
        static_cast<const float*>(logits.f32()), router, is_image,
        Scoring{c.score_func, c.gate_temp, c.route_scale, c.norm_topk_prob}, ids.i32(),
        weights.f32());
}

}  // namespace peregrine::cuda
