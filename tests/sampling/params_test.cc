// Requests out of range end in a sentence that names the field.
#include "sampling/params.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "peregrine/error.h"

namespace peregrine {
namespace {

std::string complaint(const SamplingParams& params) {
  try {
    validate(params, 100);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(SamplingParams, DefaultsAndLimitsAreValid) {
  EXPECT_EQ(complaint({}), "");
  EXPECT_EQ(complaint({.temperature = 2, .top_p = 1, .top_k = -1, .min_p = 1, .logprobs = 20}), "");
  EXPECT_EQ(complaint({.temperature = 0, .presence_penalty = -2, .frequency_penalty = 2}), "");
  EXPECT_EQ(complaint({.logit_bias = {{0, -100.0f}, {99, 100.0f}}}), "");
}

TEST(SamplingParams, Sentences) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(complaint({.temperature = 2.5}), "temperature is 2.5, expected a number from 0 to 2");
  EXPECT_EQ(complaint({.temperature = nan}), "temperature is nan, expected a number from 0 to 2");
  EXPECT_EQ(complaint({.top_p = 0}), "top_p is 0, expected a number above 0 and at most 1");
  EXPECT_EQ(complaint({.top_k = -2}), "top_k is -2, expected a positive count, or 0 or -1 for off");
  EXPECT_EQ(complaint({.min_p = -0.1}), "min_p is -0.1, expected a number from 0 to 1");
  EXPECT_EQ(complaint({.repetition_penalty = 0}),
            "repetition_penalty is 0, expected a finite number above 0");
  EXPECT_EQ(complaint({.presence_penalty = 3}),
            "presence_penalty is 3, expected a number from -2 to 2");
  EXPECT_EQ(complaint({.frequency_penalty = -3}),
            "frequency_penalty is -3, expected a number from -2 to 2");
  EXPECT_EQ(complaint({.logit_bias = {{100, 1.0f}}}),
            "logit_bias names token 100, expected an id from 0 to 99");
  EXPECT_EQ(complaint({.logit_bias = {{5, 101.0f}}}),
            "logit_bias of token 5 is 101, expected a number from -100 to 100");
  EXPECT_EQ(complaint({.logprobs = 21}), "logprobs asks for 21 tokens, expected 0 to 20");
}

}  // namespace
}  // namespace peregrine
