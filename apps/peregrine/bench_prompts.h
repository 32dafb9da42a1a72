// Files of prompts that measurements and recordings run: one JSON object a line, {"domain", "user"}
// and perhaps "system", "thinking" (effort) and "tools".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace peregrine {

struct BenchPrompt {
  std::string domain;
  std::vector<int32_t> ids;
};

// At least one prompt. Throws Error(kIo), Error(kInvalidArgument) naming the line.
std::vector<BenchPrompt> read_bench_prompts(const std::string& path, const Tokenizer& tokenizer);

}  // namespace peregrine
