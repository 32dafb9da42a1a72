// The printable characters that stand for bytes in tokenizer.json (spec: tokenizer.md section 5).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace peregrine {

// The bytes that a vocabulary string stands for; empty when it holds a character that stands for
// none.
std::optional<std::string> from_byte_alphabet(std::string_view text);
std::string to_byte_alphabet(std::string_view bytes);

}  // namespace peregrine
