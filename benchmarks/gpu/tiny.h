// models/tiny end to end on the GPU.
#pragma once

#include <string>

namespace peregrine::bench {

// Prints greedy tokens/s of one sequence, plainly and with five drafts. `path`: the checkpoint.
void tiny(const std::string& path);

}  // namespace peregrine::bench
