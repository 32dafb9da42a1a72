// BLAKE3 (256 bits) of bytes in memory, the checksum of everything that leaves a server.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace peregrine {

using Digest = std::array<std::byte, 32>;

Digest blake3_digest(std::span<const std::byte> bytes);

}  // namespace peregrine
