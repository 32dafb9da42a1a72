// Any bytes as a config.json: either an Error, or a shape whose inventory can be taken.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/inventory.h"
#include "peregrine/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const peregrine::ModelConfig config = peregrine::ModelConfig::parse(
        std::string_view(reinterpret_cast<const char*>(data), size), "input");
    // Every size derived from an accepted config stays in range; the table of a huge one is slow.
    if (config.n_layers + config.n_mtp_layers > 64 || config.n_routed_experts > 64) return 0;
    if (peregrine::take_inventory(config).bytes <= 0) std::abort();
    if (peregrine::kv_bytes_per_token(config) <= 0) std::abort();
  } catch (const peregrine::Error& error) {
    if (error.kind() != peregrine::ErrorKind::kBadCheckpoint) std::abort();
  }
  return 0;
}
