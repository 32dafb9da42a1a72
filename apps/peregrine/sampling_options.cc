#include "sampling_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>

#include "base/fail.h"
#include "engine/model_impl.h"

namespace peregrine {
namespace {

int parse_block(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMaxDrafts)
    fail(ErrorKind::kInvalidArgument, "--draft {}: expected off, auto or 1 to {}", text,
         kMaxDrafts);
  return value;
}

}  // namespace

SamplingParams SamplingOptions::params() const {
  SamplingParams p;
  p.temperature = temperature;
  p.top_p = top_p;
  p.top_k = top_k;
  p.min_p = min_p;
  p.seed = seed;
  return p;
}

void add_sampling_options(CLI::App& command, SamplingOptions& options) {
  command.add_option("--max-tokens", options.max_tokens, "Longest answer (default: 2048)");
  command.add_option("--temperature", options.temperature,
                     "0: always the likeliest token; up to 2 (default: 1)");
  command.add_option("--top-p", options.top_p, "Draw from the likeliest tokens of this mass");
  command.add_option("--top-k", options.top_k, "Draw from this many likeliest tokens");
  command.add_option("--min-p", options.min_p,
                     "Draw from tokens at least this likely, relative to the likeliest");
  command.add_option("--seed", options.seed, "Same seed, same text (default: random)");
}

void add_draft_options(CLI::App& command, DraftFlags& flags) {
  command.add_option("--draft", flags.length,
                     "Speculative decoding: off, auto (by measured speed) or a block of 1 to 16 "
                     "drafts (default: the block of the checkpoint's drafter)");
  command.add_option("--draft-threshold", flags.threshold,
                     "Verify drafts while their estimated chance is at least this (default: 0.3)");
  command.add_option("--verify", flags.verify, "How drafts are verified (default: block)")
      ->check(CLI::IsMember({"block", "rejection"}));
}

DraftOptions draft_options(const DraftFlags& flags, const Model& model) {
  const ModelConfig& config = model.impl().config();
  DraftOptions options;
  options.threshold = flags.threshold;
  options.verify = flags.verify == "block" ? VerifyMethod::kBlock : VerifyMethod::kRejection;
  if (flags.threshold < 0 || flags.threshold > 1)
    fail(ErrorKind::kInvalidArgument, "--draft-threshold {}: expected 0 to 1", flags.threshold);
  if (flags.length == "off") return options;
  if (flags.length.empty() || flags.length == "auto") {
    if (!model.has_drafter()) return options;
    options.mode = flags.length.empty() ? DraftMode::kFixed : DraftMode::kAuto;
    options.drafts = config.dspark_block_size;
    return options;
  }
  options.drafts = parse_block(flags.length);
  options.mode = DraftMode::kFixed;
  if (!model.has_drafter())
    fail(ErrorKind::kInvalidArgument, "--draft {}: this checkpoint has no drafter", options.drafts);
  if (options.drafts != config.dspark_block_size)
    fmt::print(stderr,
               "peregrine: warning: --draft {}: this drafter was trained for blocks of {}, so "
               "fewer drafts may stand\n",
               options.drafts, config.dspark_block_size);
  return options;
}

}  // namespace peregrine
