// Memory and the entry of the model: allocation, copies, embedding rows.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "backend/reference/reference_backend.h"
#include "backend/reference/weight_row.h"
#include "base/fail.h"

namespace peregrine {
namespace {

constexpr size_t kAlignment = 256;

// From here on memory is mapped without reserving it, so that pages never touched cost nothing;
// smaller pieces come from the heap, where checkers see their ends.
constexpr size_t kMapFromBytes = size_t{1} << 20;

void* map_zeroed(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

void* heap_zeroed(size_t bytes) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
  if (data != nullptr) std::memset(data, 0, rounded);
  return data;
}

void free_block(void* data, size_t bytes) {
  if (bytes >= kMapFromBytes) {
    munmap(data, bytes);
  } else {
    std::free(data);
  }
}

}  // namespace

ReferenceBackend::ReferenceBackend(const ModelConfig& config, Numerics numerics)
    : config_(config), numerics_(numerics) {}

ReferenceBackend::~ReferenceBackend() {
  for (const auto& [data, bytes] : allocations_) free_block(data, bytes);
}

void* ReferenceBackend::allocate(size_t bytes) {
  void* data = bytes >= kMapFromBytes ? map_zeroed(bytes) : heap_zeroed(bytes);
  if (data == nullptr) {
    fail(ErrorKind::kOutOfMemory,
         "the host has no room for {} bytes asked from the {} backend; a smaller context, batch or "
         "cache budget needs less",
         bytes, name());
  }
  const std::lock_guard lock(allocations_mutex_);
  allocations_.emplace(data, bytes);
  return data;
}

void ReferenceBackend::release(void* data) {
  if (data == nullptr) return;
  const std::lock_guard lock(allocations_mutex_);
  const auto found = allocations_.find(data);
  if (found == allocations_.end()) {
    fail(ErrorKind::kInternal, "release of {}, which the {} backend did not allocate", data,
         name());
  }
  free_block(data, found->second);
  allocations_.erase(found);
}

const void* ReferenceBackend::adopt_weight(const void* host, size_t) { return host; }

void ReferenceBackend::copy_in(void* dst, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(dst, host, bytes);
}

void ReferenceBackend::copy_out(void* host, const void* src, size_t bytes) {
  if (bytes > 0) std::memcpy(host, src, bytes);
}

void ReferenceBackend::embed(const Weight& table, const int32_t* tokens, int copies, Tensor x) {
  for (int64_t r = 0; r < x.rows; ++r) {
    float* row = x.f32() + r * x.cols;
    reference::widen_row(table, tokens[r], row);
    for (int64_t i = 0; i < table.in; ++i) row[i] = round(row[i]);
    for (int copy = 1; copy < copies; ++copy) {
      std::memcpy(row + copy * table.in, row, static_cast<size_t>(table.in) * sizeof(float));
    }
  }
}

void ReferenceBackend::gather_rows(Tensor src, const int32_t* indices, Tensor dst) {
  const size_t row_bytes = static_cast<size_t>(src.cols) * elem_bytes(src.elem);
  for (int64_t r = 0; r < dst.rows; ++r) {
    std::memcpy(
        static_cast<std::byte*>(dst.data) + static_cast<size_t>(r) * row_bytes,
        static_cast<const std::byte*>(src.data) + static_cast<size_t>(indices[r]) * row_bytes,
        row_bytes);
  }
}

void ReferenceBackend::copy(Tensor src, Tensor dst) {
  if (src.bytes() > 0) std::memcpy(dst.data, src.data, src.bytes());
}

}  // namespace peregrine
