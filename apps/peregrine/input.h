// Text that a command is given.
#pragma once

#include <string>

namespace peregrine {

// The whole of `path`; of standard input for "" and "-", which must not be a terminal for "".
// `trim` takes off one line end, as the shell does with $(...). Throws Error.
std::string read_input(const std::string& path, bool trim);

}  // namespace peregrine
