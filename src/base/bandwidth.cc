#include "base/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>

#include "base/fail.h"
#include "base/thread_pool.h"

namespace peregrine {
namespace {

constexpr int kPasses = 5;
constexpr size_t kPieceWords = size_t{1} << 16;  // 512 KB, one piece of the parallel loop
constexpr size_t kLaneWords = 64;                // independent sums, so that latency is hidden

using Word __attribute__((vector_size(16))) = uint64_t;

uint64_t sum(const uint64_t* words, size_t n) {
  constexpr size_t kLanes = kLaneWords / 8;
  Word sums[kLanes] = {};
  const auto* vectors = reinterpret_cast<const Word*>(words);
  for (size_t i = 0; i < n / 2; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += vectors[i + lane];
  }
  uint64_t total = 0;
  for (const Word& lane : sums) total += lane[0] + lane[1];
  return total;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, size_t bytes) {
  const size_t pieces = std::max<size_t>(1, bytes / (kPieceWords * sizeof(uint64_t)));
  struct Free {
    void operator()(uint64_t* data) const { ::operator delete (data, std::align_val_t{4096}); }
  };
  std::unique_ptr<uint64_t, Free> buffer(static_cast<uint64_t*>(::operator new (
      pieces* kPieceWords * sizeof(uint64_t), std::align_val_t{4096}, std::nothrow)));
  if (buffer == nullptr) {
    fail(ErrorKind::kOutOfMemory, "the host has no room for {} bytes to measure its read bandwidth",
         pieces * kPieceWords * sizeof(uint64_t));
  }
  pool.parallel_for(static_cast<int64_t>(pieces), [&](int64_t piece) {
    uint64_t* words = buffer.get() + static_cast<size_t>(piece) * kPieceWords;
    std::fill(words, words + kPieceWords, static_cast<uint64_t>(piece));
  });

  std::atomic<uint64_t> total{0};  // keeps the reads alive
  double best_seconds = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(static_cast<int64_t>(pieces), [&](int64_t piece) {
      total += sum(buffer.get() + static_cast<size_t>(piece) * kPieceWords, kPieceWords);
    });
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    if (pass == 0 || passed.count() < best_seconds) best_seconds = passed.count();
  }
  return static_cast<double>(pieces * kPieceWords * sizeof(uint64_t)) /
         std::max(best_seconds, 1e-9);
}

}  // namespace peregrine
