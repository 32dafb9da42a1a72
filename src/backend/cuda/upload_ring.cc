#include "backend/cuda/upload_ring.h"

#include <cassert>
#include <cstring>

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

UploadRing::UploadRing(cudaStream_t stream) : stream_(stream) {
  check(cudaMallocHost(reinterpret_cast<void**>(&data_), 2 * kHalf), "pinned upload memory");
  for (cudaEvent_t& event : read_)
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
}

UploadRing::~UploadRing() {
  cudaStreamSynchronize(stream_);
  for (const cudaEvent_t event : read_) cudaEventDestroy(event);
  cudaFreeHost(data_);
}

void UploadRing::upload(void* dst, const void* host, size_t bytes) {
  assert(bytes <= kLargest);
  const std::lock_guard lock(mutex_);
  const size_t rounded = (bytes + 255) / 256 * 256;
  if (used_ + rounded > kHalf) {
    check(cudaEventRecord(read_[half_], stream_), "an event");
    half_ = 1 - half_;
    used_ = 0;
    check(cudaEventSynchronize(read_[half_]), "uploads");
  }
  std::byte* at = data_ + static_cast<size_t>(half_) * kHalf + used_;
  std::memcpy(at, host, bytes);
  used_ += rounded;
  check(cudaMemcpyAsync(dst, at, bytes, cudaMemcpyDefault, stream_), "an upload");
}

}  // namespace peregrine::cuda
