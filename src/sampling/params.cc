#include "sampling/params.h"

#include <cmath>

#include "base/fail.h"

namespace peregrine {
namespace {

void check_range(const char* name, double value, double low, double high) {
  // Written so that a NaN fails.
  if (value >= low && value <= high) return;
  fail(ErrorKind::kInvalidArgument, "{} is {}, expected a number from {} to {}", name, value, low,
       high);
}

}  // namespace

void validate(const SamplingParams& params, int vocab_size) {
  check_range("temperature", params.temperature, 0.0, 2.0);
  check_range("min_p", params.min_p, 0.0, 1.0);
  check_range("presence_penalty", params.presence_penalty, -2.0, 2.0);
  check_range("frequency_penalty", params.frequency_penalty, -2.0, 2.0);
  if (!(params.top_p > 0.0 && params.top_p <= 1.0)) {
    fail(ErrorKind::kInvalidArgument, "top_p is {}, expected a number above 0 and at most 1",
         params.top_p);
  }
  if (params.top_k < -1) {
    fail(ErrorKind::kInvalidArgument, "top_k is {}, expected a positive count, or 0 or -1 for off",
         params.top_k);
  }
  if (!(params.repetition_penalty > 0.0) || !std::isfinite(params.repetition_penalty)) {
    fail(ErrorKind::kInvalidArgument, "repetition_penalty is {}, expected a finite number above 0",
         params.repetition_penalty);
  }
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      fail(ErrorKind::kInvalidArgument, "logit_bias names token {}, expected an id from 0 to {}",
           id, vocab_size - 1);
    }
    if (!(bias >= -100.0f && bias <= 100.0f)) {
      fail(ErrorKind::kInvalidArgument,
           "logit_bias of token {} is {}, expected a number from -100 to 100", id, bias);
    }
  }
  if (params.logprobs && (*params.logprobs < 0 || *params.logprobs > kMaxTopLogprobs)) {
    fail(ErrorKind::kInvalidArgument, "logprobs asks for {} tokens, expected 0 to {}",
         *params.logprobs, kMaxTopLogprobs);
  }
}

}  // namespace peregrine
