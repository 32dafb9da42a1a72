// How tokens are drawn and drafted: options shared by the commands that generate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/generator.h"

namespace CLI {
class App;
}

namespace peregrine {

struct SamplingOptions {
  double temperature = 1;
  double top_p = 1;
  int top_k = 0;
  double min_p = 0;
  std::optional<uint64_t> seed;
  int max_tokens = 2048;

  SamplingParams params() const;
};

void add_sampling_options(CLI::App& command, SamplingOptions& options);

struct DraftFlags {
  std::string length;  // off, auto or a number; empty: the drafter's own block
  double threshold = 0.3;
  std::string verify = "block";
};

void add_draft_options(CLI::App& command, DraftFlags& flags);

// What the flags mean for a model; warns in one line on standard error about a block that the
// drafter was not trained for. Throws Error(kInvalidArgument).
DraftOptions draft_options(const DraftFlags& flags, const Model& model);

}  // namespace peregrine
