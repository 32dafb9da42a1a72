// The one pass over weight bytes at load: brings pages into memory and refuses NaN codes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "checkpoint/checkpoint.h"

namespace peregrine {

// Bytes of a tensor.
struct WeightRange {
  const TensorView* view = nullptr;
  std::span<const std::byte> bytes;
};

// Reads the given ranges once, in the order of their bytes in the files. Refuses the byte 255
// (NaN) in F8_E8M0 scales and the NaN codes 0x7F and 0xFF in F8_E4M3 weights with an
// Error(kBadCheckpoint) that names file, tensor and position.
void scan_weights(const TensorSource& source, std::vector<WeightRange> ranges,
                  const std::function<void(const LoadProgress&)>& on_progress);

// Memory that a process may still fill, in bytes: what the kernel calls available, within the limit
// of the control group. 0 when neither is known.
uint64_t available_memory_bytes();

}  // namespace peregrine
