// What every launching function of the CUDA backend is given, and the scratch memory they share.
//
// Rules for kernels and their launches, which make steps recordable as CUDA graphs and results
// independent of the batch:
//  - Grid and block sizes depend on the number of rows, on tensor shapes and on KvView capacities,
//    never on positions, slots, counts or routing, which exist in device memory alone.
//  - No atomic floating-point operation, and no sum whose order depends on the number of rows.
//  - Everything runs on `stream`, in order; nothing is read back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "checkpoint/config.h"

namespace peregrine::cuda {

// Throws Error(kUnavailable) "CUDA: <what>: <CUDA's words>" when `status` is an error.
void check(cudaError_t status, const char* what);
// Reports errors of the launch before it.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Device memory for the temporaries of one operation: the next operation reuses it, which the
// stream's order makes safe. Grows when asked for more than before, which waits for the device and
// invalidates recorded graphs (generation()).
class Scratch {
 public:
  explicit Scratch(cudaStream_t stream) : stream_(stream) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least `bytes`, aligned to 256; contents are arbitrary. One call an operation.
  std::byte* get(size_t bytes);
  int generation() const { return generation_; }
  size_t bytes() const { return bytes_; }

 private:
  cudaStream_t stream_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int generation_ = 0;
};

struct Launch {
  cudaStream_t stream;
  const ModelConfig& config;
  Numerics numerics;  // act tensors hold bf16 with kBF16, f32 with kF32
  Scratch& scratch;
  int multiprocessors;
};

// Pieces of a scratch block, each aligned to 256 bytes: measure with a null base, then place.
class Carve {
 public:
  explicit Carve(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(size_t n) {
    T* at = reinterpret_cast<T*>(base_ + used_);
    used_ += (n * sizeof(T) + 255) / 256 * 256;
    return base_ != nullptr ? at : nullptr;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace peregrine::cuda
