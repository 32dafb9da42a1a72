// Tells which tokens' text has become visible, and as what: reasoning, content, or neither.
//
// The parser takes markup out and the stop matcher holds text back, so the log-probabilities of a
// token wait here until its text has been shown.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "peregrine/generation.h"

namespace peregrine {

struct VisibleToken {
  TokenLogprobs logprobs;
  bool reasoning = false;  // else content
};

class TokenChannels {
 public:
  // A token was made; `text` is what it added to the decoded output, perhaps nothing.
  void made(TokenLogprobs logprobs, std::string text);
  // Text was shown. Tokens before it whose text was not shown are markup and are dropped.
  void shown(bool reasoning, std::string_view text);
  std::vector<VisibleToken> take() { return std::exchange(visible_, {}); }

 private:
  struct Waiting {
    TokenLogprobs logprobs;
    std::string text;
  };
  std::deque<Waiting> waiting_;
  std::vector<VisibleToken> visible_;
};

}  // namespace peregrine
