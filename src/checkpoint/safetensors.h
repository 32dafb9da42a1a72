// The safetensors container: a memory-mapped reader (one file or a sharded directory) and a writer.
//
// Opening maps files and parses headers; weight bytes are not touched. Every structural defect
// (truncated file, oversized header, bad or overlapping offsets, unknown dtype, size that does not
// match the shape) is an Error(kBadCheckpoint) that names the file, the tensor, what was found and
// what was expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace peregrine {

enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,  // e4m3fn
  kF8E8M0,  // power-of-two scale
  kF4,      // two e2m1 a byte, low nibble first; shape counts values, not bytes
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
};

// Name as it stands in a safetensors header ("F8_E4M3"), and the bits of one element (4 for kF4).
std::string_view dtype_name(DType dtype);
int dtype_bits(DType dtype);

// A tensor inside a mapped file. `data` stays valid while its TensorSource lives; it has whatever
// alignment the file gave it.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  int shard = 0;  // index into TensorSource::files()

  int64_t elements() const;
  std::string shape_text() const;  // "[2304, 2560]"
};

// All tensors of a checkpoint by name.
class TensorSource {
 public:
  // `path` is a .safetensors file, or a directory with model.safetensors.index.json or
  // model.safetensors. Throws Error(kIo) or Error(kBadCheckpoint).
  static std::unique_ptr<TensorSource> open(const std::string& path);
  virtual ~TensorSource() = default;

  virtual const TensorView* find(std::string_view name) const = 0;  // nullptr when absent
  virtual std::span<const TensorView> tensors() const = 0;          // ordered by name
  virtual std::span<const std::string> files() const = 0;
  virtual uint64_t total_bytes() const = 0;  // tensor bytes, headers not counted
};

// Writes one safetensors file; tensors keep their order, data starts 8-byte aligned.
// Throws Error(kIo) when the file cannot be written completely; no partial file is left behind.
void write_safetensors(const std::string& path, std::span<const TensorView> tensors);

}  // namespace peregrine
