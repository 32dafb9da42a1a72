// Any bytes as a message between servers: either an Error, or a message that encodes to them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "kvshare/peer_message.h"
#include "peregrine/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const auto again = peregrine::encode(peregrine::decode_peer_message(bytes));
    if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
  } catch (const peregrine::Error& error) {
    if (error.kind() != peregrine::ErrorKind::kIo) std::abort();
  }
  return 0;
}
