// Any bytes as a safetensors file: either an Error, or views that lie inside the bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "checkpoint/safetensors_header.h"
#include "peregrine/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  try {
    size_t covered = 0;
    for (const peregrine::TensorView& view : peregrine::parse_safetensors(file, "input")) {
      if (view.data < begin || view.data + view.bytes > begin + size) std::abort();
      covered += view.bytes;
    }
    if (covered > size) std::abort();
  } catch (const peregrine::Error& error) {
    if (error.kind() != peregrine::ErrorKind::kBadCheckpoint) std::abort();
  }
  return 0;
}
