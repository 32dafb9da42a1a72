// What a run of generate reports about itself: the closing line and the JSON object.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "answer.h"

namespace peregrine {

struct RunReport {
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // of the prompt, whose state was already there
  double prefill_seconds = 0;
  Answer answer;
  double read_bandwidth = 0;  // bytes/s measured in this run; 0: not measured

  double tokens_per_second() const;
  double prefill_tokens_per_second() const;
  double weight_bytes_per_second() const;  // read by model steps, over the time they took
};

// Bytes/s at which `threads` threads (0: one a core) read memory. Small models live in the last
// cache, so the measured buffer follows the size of the weights.
double read_bandwidth(int threads, uint64_t weight_bytes);

// "64 tokens, 91.2 tokens/s; prompt 17 tokens, 310 tokens/s; ..." without a line end.
std::string closing_line(const RunReport& report);

nlohmann::ordered_json report_json(const RunReport& report, const Tokenizer& tokenizer);

}  // namespace peregrine
