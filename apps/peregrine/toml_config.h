// A config file whose keys are the long flags of a command: `max-running = 32`, lists for flags
// that may be repeated. A flag on the command line wins.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace peregrine {

// Sets what the command line has left open; call before the options are used. Throws Error for a
// file that cannot be read or parsed and for a key that is no flag of the command; CLI::Error for a
// value that the flag does not take.
void apply_config_file(CLI::App& command, const std::string& path);

}  // namespace peregrine
