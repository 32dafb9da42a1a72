// Memory of the CUDA backend: the budget, adopted weights, copies.
#include <algorithm>

#include "backend/cuda/copy.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/weight_scales.h"
#include "base/fail.h"

namespace peregrine {

namespace cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  fail(ErrorKind::kUnavailable, "CUDA: {}: {}", what, cudaGetErrorString(status));
}

Scratch::~Scratch() { cudaFree(data_); }

std::byte* Scratch::get(size_t bytes) {
  if (bytes <= bytes_) return data_;
  const size_t grown = std::max(bytes, 2 * bytes_);
  check(cudaStreamSynchronize(stream_), "scratch memory");
  cudaFree(data_);
  data_ = nullptr;
  bytes_ = 0;
  ++generation_;
  if (cudaMalloc(reinterpret_cast<void**>(&data_), grown) != cudaSuccess) {
    cudaGetLastError();
    fail(ErrorKind::kOutOfMemory,
         "the device has no room for {} bytes of scratch memory; fewer rows a step or a shorter "
         "context need less",
         grown);
  }
  bytes_ = grown;
  return data_;
}

}  // namespace cuda

using cuda::check;

// Device memory within the budget.
void* CudaBackend::device_bytes(size_t bytes, const char* purpose) {
  const size_t held = buffer_bytes_ + weight_bytes_;
  void* data = nullptr;
  if (held + bytes <= budget_ && cudaMalloc(&data, std::max<size_t>(bytes, 1)) == cudaSuccess)
    return data;
  cudaGetLastError();  // the failure is reported here
  size_t free_bytes = 0, total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  fail(ErrorKind::kOutOfMemory,
       "{} has no room for {} bytes of {}: {} of the {} bytes allowed are held ({} weights, {} "
       "buffers) and {} of its {} bytes are free; a larger memory fraction, a shorter context or "
       "fewer rows a step would fit",
       device_name_, bytes, purpose, held, budget_, weight_bytes_, buffer_bytes_, free_bytes,
       total_bytes);
}

void* CudaBackend::allocate(size_t bytes) {
  const std::lock_guard lock(memory_mutex_);
  void* data = device_bytes(bytes, "buffers");
  buffers_.emplace(data, bytes);
  buffer_bytes_ += bytes;
  check(cudaMemsetAsync(data, 0, bytes, stream_), "clearing memory");
  return data;
}

void CudaBackend::release(void* data) {
  if (data == nullptr) return;
  const std::lock_guard lock(memory_mutex_);
  const auto found = buffers_.find(data);
  if (found == buffers_.end())
    fail(ErrorKind::kInternal, "release of {}, which the {} backend did not allocate", data,
         name());
  buffer_bytes_ -= found->second;
  buffers_.erase(found);
  cudaFree(data);  // waits for the work that may use it
}

const void* CudaBackend::adopt_weight(const void* host, size_t bytes) {
  const std::lock_guard lock(memory_mutex_);
  const auto found = weights_.find(host);
  if (found != weights_.end()) return found->second;
  void* data = nullptr;
  if (bytes >= kHostResidentBytes) {
    void* range = const_cast<void*>(host);
    check(cudaHostRegister(range, bytes, cudaHostRegisterMapped | cudaHostRegisterReadOnly),
          "pinning a table in host memory");
    pinned_.push_back(range);
    check(cudaHostGetDevicePointer(&data, range, 0), "mapping a table into the device");
  } else {
    data = device_bytes(bytes, "weights");
    weight_bytes_ += bytes;
    owned_weights_.push_back(data);
    check(cudaMemcpyAsync(data, host, bytes, cudaMemcpyDefault, stream_), "copying weights");
    check(cudaStreamSynchronize(stream_), "copying weights");
  }
  weights_.emplace(host, data);
  return data;
}

const void* CudaBackend::adopt_scales(std::string_view tensor, const void* host, size_t bytes) {
  if (numerics_ == Numerics::kBF16)
    cuda::check_scales(tensor, {static_cast<const uint8_t*>(host), bytes});
  return adopt_weight(host, bytes);
}

void CudaBackend::copy_in(void* dst, const void* host, size_t bytes) {
  if (bytes == 0) return;
  if (bytes <= cuda::UploadRing::kLargest) {
    uploads_->upload(dst, host, bytes);
    return;
  }
  check(cudaMemcpyAsync(dst, host, bytes, cudaMemcpyDefault, stream_), "copying to device");
  check(cudaStreamSynchronize(stream_), "copying to device");
}

void CudaBackend::copy_out(void* host, const void* src, size_t bytes) {
  if (bytes > 0)
    check(cudaMemcpyAsync(host, src, bytes, cudaMemcpyDefault, stream_), "copying from device");
  synchronize();
}

void CudaBackend::synchronize() { check(cudaStreamSynchronize(stream_), "waiting for the device"); }

void CudaBackend::copy(Tensor src, Tensor dst) {
  const auto lines = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const size_t bytes = src.bytes();
  if (bytes == 0) return;
  if (bytes % 16 == 0 && lines(src.data) && lines(dst.data)) {
    cuda::copy_lines(stream_, src.data, dst.data, bytes);
  } else {
    check(cudaMemcpyAsync(dst.data, src.data, bytes, cudaMemcpyDefault, stream_),
          "copying on the device");
  }
}

}  // namespace peregrine
