#include "checkpoint/weight_scan.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <tuple>

#include "base/fail.h"

namespace peregrine {
namespace {

using Clock = std::chrono::steady_clock;

// Small enough that a second look for the other NaN code finds the chunk in the nearest cache.
constexpr size_t kChunkBytes = 16 << 10;
constexpr size_t kPageBytes = 4096;

// Reports at most every 100 ms.
class Progress {
 public:
  Progress(const std::function<void(const LoadProgress&)>& callback, uint64_t bytes, size_t tensors)
      : callback_(callback) {
    state_.bytes_total = bytes;
    state_.tensors_total = static_cast<int>(tensors);
  }
  void advance(size_t bytes) {
    state_.bytes_done += bytes;
    if (Clock::now() - last_ >= std::chrono::milliseconds(100)) report();
  }
  void tensor_done() { ++state_.tensors_done; }
  void report() {
    last_ = Clock::now();
    state_.seconds = std::chrono::duration<double>(last_ - start_).count();
    if (callback_) callback_(state_);
  }

 private:
  const std::function<void(const LoadProgress&)>& callback_;
  LoadProgress state_;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

// Offset of the first byte equal to `code`, or `size`.
size_t find_code(const std::byte* data, size_t size, int code) {
  const void* at = std::memchr(data, code, size);
  return at == nullptr ? size : static_cast<size_t>(static_cast<const std::byte*>(at) - data);
}

// Offset of the first NaN code of the chunk, or `size`; touches every page.
size_t scan_chunk(DType dtype, const std::byte* data, size_t size) {
  if (dtype == DType::kF8E8M0) return find_code(data, size, 0xFF);
  if (dtype == DType::kF8E4M3) {
    return std::min(find_code(data, size, 0x7F), find_code(data, size, 0xFF));
  }
  for (size_t at = 0; at < size; at += kPageBytes) {
    [[maybe_unused]] const volatile std::byte touched = data[at];
  }
  return size;
}

// The number on the line that starts with `key`, in the unit of the file.
uint64_t read_number(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word != key) continue;
    uint64_t value = 0;
    return file >> value ? value : 0;
  }
  return 0;
}

}  // namespace

void scan_weights(const TensorSource& source, std::vector<WeightRange> ranges,
                  const std::function<void(const LoadProgress&)>& on_progress) {
  std::sort(ranges.begin(), ranges.end(), [](const WeightRange& a, const WeightRange& b) {
    return std::make_tuple(a.view->shard, a.bytes.data()) <
           std::make_tuple(b.view->shard, b.bytes.data());
  });
  uint64_t total = 0;
  for (const WeightRange& range : ranges) total += range.bytes.size();
  Progress progress(on_progress, total, ranges.size());
  for (const auto& [view, bytes] : ranges) {
    for (size_t begin = 0; begin < bytes.size(); begin += kChunkBytes) {
      const size_t size = std::min(kChunkBytes, bytes.size() - begin);
      const std::byte* chunk = bytes.data() + begin;
      const size_t bad = scan_chunk(view->dtype, chunk, size);
      if (bad < size) {
        fail(ErrorKind::kBadCheckpoint,
             "{}: tensor '{}' has the NaN code {:#04x} at its byte {}, expected finite {} values",
             source.files()[view->shard], view->name, std::to_integer<int>(chunk[bad]),
             chunk + bad - view->data, dtype_name(view->dtype));
      }
      progress.advance(size);
    }
    progress.tensor_done();
  }
  progress.report();
}

uint64_t available_memory_bytes() {
  uint64_t available = read_number("/proc/meminfo", "MemAvailable:") * 1024;
  // "max" when there is no limit, which reads as no number.
  std::ifstream group("/sys/fs/cgroup/memory.max");
  uint64_t limit = 0;
  if (group >> limit) available = available == 0 ? limit : std::min(available, limit);
  return available;
}

}  // namespace peregrine
