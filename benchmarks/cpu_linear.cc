// The cpu backend's products at the released dims: bytes of weights a second at few rows, against
// the read bandwidth measured in the same run, and operations a second at many rows.
//
//   cpu_linear [threads]      0 or nothing: one thread a core
//
// Weights are many copies of a shape, larger together than the last cache, so that every pass reads
// memory.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/bandwidth.h"

namespace peregrine {
namespace {

constexpr size_t kBandwidthBytes = size_t{512} << 20;
constexpr size_t kWeightBytes = size_t{256} << 20;  // of all copies of a shape
constexpr int kPasses = 7;
constexpr int kManyRows = 512;

double seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double best_seconds(int passes, const std::function<void()>& run) {
  double best = 1e30;
  for (int pass = 0; pass < passes; ++pass) best = std::min(best, seconds(run));
  return best;
}

// Random codes: NaN free, scales near one.
Weight make_weight(Backend& backend, WeightFormat format, int64_t out, int64_t in) {
  std::minstd_rand random(1);
  Weight w{.format = format, .out = out, .in = in, .data = nullptr, .scale = nullptr};
  auto* data = static_cast<uint8_t*>(backend.allocate(w.data_bytes()));
  auto* words = reinterpret_cast<uint32_t*>(data);
  for (size_t i = 0; i < w.data_bytes() / 4; ++i) {
    words[i] = static_cast<uint32_t>(random()) & 0x37773777u;
  }
  auto* scales = static_cast<uint8_t*>(backend.allocate(std::max<size_t>(1, w.scale_bytes())));
  for (size_t i = 0; i < w.scale_bytes(); ++i) scales[i] = static_cast<uint8_t>(118 + random() % 8);
  w.data = data;
  w.scale = scales;
  return w;
}

Tensor make_act(Backend& backend, int64_t rows, int64_t cols) {
  std::minstd_rand random(2);
  const Tensor x{backend.allocate(static_cast<size_t>(rows * cols) * sizeof(float)), rows, cols,
                 Elem::kF32};
  for (int64_t i = 0; i < rows * cols; ++i) {
    x.f32()[i] = round_bf16(static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 500.0f);
  }
  return x;
}

struct Shape {
  const char* name;
  WeightFormat format;
  int64_t out;
  int64_t in;
  LinearKind kind;
};

void print_decode(const std::string& name, int rows, double bytes, double time, double limit) {
  fmt::print("  {:<28} {:>3} rows {:>9.1f} us {:>7.2f} GB/s {:>5.0f}%\n", name, rows, time * 1e6,
             bytes / time * 1e-9, 100.0 * bytes / time / limit);
}

void bench_linear(Backend& backend, const Shape& shape, double limit) {
  Weight one = make_weight(backend, shape.format, shape.out, shape.in);
  std::vector<Weight> copies = {one};
  while (copies.size() * one.bytes() < kWeightBytes) {
    copies.push_back(make_weight(backend, shape.format, shape.out, shape.in));
  }
  const Tensor x = make_act(backend, kManyRows, shape.in);
  const Tensor y = make_act(backend, kManyRows, shape.out);
  for (const int rows : {1, 2, 4, 8, 16}) {
    const double time =
        best_seconds(kPasses,
                     [&] {
                       for (const Weight& w : copies) {
                         backend.linear(x.first(rows), w, shape.kind, y.first(rows));
                       }
                     }) /
        static_cast<double>(copies.size());
    print_decode(shape.name, rows, static_cast<double>(one.bytes()), time, limit);
  }
  const double time = best_seconds(2, [&] { backend.linear(x, one, shape.kind, y); });
  fmt::print("  {:<28} {:>3} rows {:>9.1f} ms {:>7.1f} GFLOP/s\n", shape.name, kManyRows,
             time * 1e3, 2.0 * kManyRows * static_cast<double>(shape.out * shape.in) / time * 1e-9);
  for (const Weight& w : copies) {
    backend.release(const_cast<void*>(w.data));
    backend.release(const_cast<uint8_t*>(w.scale));
  }
  backend.release(x.data);
  backend.release(y.data);
}

void bench_experts(Backend& backend, double limit) {
  constexpr int kExperts = 32, kActive = 6;
  constexpr int64_t kDim = 5120, kInner = 2304;
  const auto make = [&](WeightFormat format) {
    return Expert{make_weight(backend, format, kInner, kDim),
                  make_weight(backend, format, kDim, kInner),
                  make_weight(backend, format, kInner, kDim)};
  };
  std::vector<Expert> routed;
  for (int e = 0; e < kExperts; ++e) routed.push_back(make(WeightFormat::kF4));
  const Expert shared = make(WeightFormat::kF8);
  const double routed_bytes =
      static_cast<double>(routed[0].w1.bytes() + routed[0].w2.bytes() + routed[0].w3.bytes());
  const double shared_bytes =
      static_cast<double>(shared.w1.bytes() + shared.w2.bytes() + shared.w3.bytes());
  const Tensor u = make_act(backend, kManyRows, kDim);
  const Tensor out = make_act(backend, kManyRows, kDim);
  std::vector<int32_t> ids(kManyRows * kActive);
  std::vector<float> weights(ids.size(), 0.25f);
  int turn = 0;
  for (const int rows : {1, 2, 4, 8, kManyRows}) {
    double distinct = 0;
    double time = 1e30;
    for (int pass = 0; pass < (rows == kManyRows ? 2 : 4 * kPasses); ++pass) {
      std::vector<bool> used(kExperts, false);
      for (int r = 0; r < rows; ++r) {
        // Six different experts in ascending order, others in the next pass.
        std::vector<int32_t> chosen;
        for (int slot = 0; slot < kActive; ++slot) chosen.push_back((turn + slot * 5) % kExperts);
        turn += 7;
        std::sort(chosen.begin(), chosen.end());
        for (int slot = 0; slot < kActive; ++slot) {
          ids[static_cast<size_t>(r * kActive + slot)] = chosen[static_cast<size_t>(slot)];
          used[static_cast<size_t>(chosen[static_cast<size_t>(slot)])] = true;
        }
      }
      distinct = static_cast<double>(std::count(used.begin(), used.end(), true));
      time = std::min(time, seconds([&] {
                        backend.experts({.u = u.first(rows),
                                         .ids = {ids.data(), rows, kActive, Elem::kI32},
                                         .weights = {weights.data(), rows, kActive, Elem::kF32},
                                         .routed = routed,
                                         .shared = &shared,
                                         .out = out.first(rows)});
                      }));
    }
    print_decode(fmt::format("experts, {:.0f} + shared", distinct), rows,
                 distinct * routed_bytes + shared_bytes, time, limit);
    if (rows == kManyRows) {
      const double products = 3.0 * static_cast<double>(kDim * kInner) * (kActive + 1) * rows;
      fmt::print("  {:<28} {:>3} rows {:>9.1f} ms {:>7.1f} GFLOP/s\n", "experts", rows, time * 1e3,
                 2.0 * products / time * 1e-9);
    }
  }
}

ModelConfig released_config() {
  ModelConfig config;
  config.dim = 5120;
  config.n_heads = 64;
  config.head_dim = 512;
  config.swiglu_limit = 10;
  return config;
}

int run(int threads) {
  CpuBackend backend(released_config(), Numerics::kBF16, threads);
  double limit = 0;
  {
    ThreadPool pool(backend.threads());
    limit = measure_read_bandwidth(pool, kBandwidthBytes);
  }
  fmt::print("{}; read bandwidth {:.1f} GB/s\n", backend.name(), limit * 1e-9);
  const Shape shapes[] = {
      {"wq_b FP8 32768x1280", WeightFormat::kF8, 32768, 1280, LinearKind::kQuantised},
      {"wo_b FP8 5120x8192", WeightFormat::kF8, 5120, 8192, LinearKind::kQuantised},
      {"wkv FP8 512x5120", WeightFormat::kF8, 512, 5120, LinearKind::kQuantised},
      {"expert w1 FP4 2304x5120", WeightFormat::kF4, 2304, 5120, LinearKind::kQuantised},
      {"expert w2 FP4 5120x2304", WeightFormat::kF4, 5120, 2304, LinearKind::kQuantised},
      {"head BF16 16160x5120", WeightFormat::kBF16, 16160, 5120, LinearKind::kFull},
      {"hc fn F32 24x20480", WeightFormat::kF32, 24, 20480, LinearKind::kFull},
  };
  for (const Shape& shape : shapes) bench_linear(backend, shape, limit);
  bench_experts(backend, limit);
  return 0;
}

}  // namespace
}  // namespace peregrine

int main(int argc, char** argv) { return peregrine::run(argc > 1 ? std::atoi(argv[1]) : 0); }
