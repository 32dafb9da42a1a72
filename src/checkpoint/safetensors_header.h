// The header of a safetensors file, parsed from memory.
//
// Owns the structural rules of the container: eight bytes of little-endian header length, a JSON
// object of {name: {dtype, shape, data_offsets}}, and data that covers the rest of the file without
// overlap or hole. Refuses everything else with an Error(kBadCheckpoint) naming file and tensor.
// Hostile headers cost time and memory proportional to their length only (times the logarithm of
// the tensor count).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace peregrine {

// The longest header accepted, in bytes; the released model's 48 shards need about 300 KB each.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Parses a whole file image: header length, header, and the bounds of every tensor. Of the data
// part only the length is used; no byte of it is read. The views point into `file` and come in the
// order of their data. `name_for_errors` is the path to name in messages.
std::vector<TensorView> parse_safetensors(std::string_view file,
                                          const std::string& name_for_errors);

// The dtype of that header name; throws Error(kBadCheckpoint) naming file and tensor.
DType parse_dtype(std::string_view text, std::string_view tensor, std::string_view file);

// Bytes of a tensor of that dtype and shape; throws Error(kBadCheckpoint) when a side is negative,
// the product overflows, or the values do not fill whole bytes.
uint64_t tensor_bytes(DType dtype, const std::vector<int64_t>& shape, std::string_view tensor,
                      std::string_view file);

// A name taken from a file, cut to a readable length and free of control characters.
std::string printable(std::string_view name);

}  // namespace peregrine
