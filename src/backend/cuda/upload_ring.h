// A ring of pinned host memory through which small uploads go, so that copy_in neither waits for
// the device nor reads the caller's memory after it returned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>

namespace peregrine::cuda {

class UploadRing {
 public:
  explicit UploadRing(cudaStream_t stream);
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  static constexpr size_t kLargest = size_t{1} << 16;  // bytes of one upload

  // Queues a copy of `bytes` (at most kLargest) to device memory.
  void upload(void* dst, const void* host, size_t bytes);

 private:
  // Two halves: entering one waits until the device has read what was last queued from it.
  static constexpr size_t kHalf = size_t{1} << 20;

  std::mutex mutex_;
  cudaStream_t stream_;
  std::byte* data_ = nullptr;
  size_t used_ = 0;  // of the current half
  int half_ = 0;
  cudaEvent_t read_[2] = {};
};

}  // namespace peregrine::cuda
