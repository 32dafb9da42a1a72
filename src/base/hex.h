// Bytes as hexadecimal text, in lower case.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace peregrine {

std::string to_hex(std::span<const std::byte> bytes);  // two digits a byte
bool is_hex(std::string_view text);                    // nothing but such digits

}  // namespace peregrine
