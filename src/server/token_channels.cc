#include "server/token_channels.h"

namespace peregrine {

void TokenChannels::made(TokenLogprobs logprobs, std::string text) {
  waiting_.push_back({std::move(logprobs), std::move(text)});
}

void TokenChannels::shown(bool reasoning, std::string_view text) {
  while (!text.empty() && !waiting_.empty()) {
    Waiting& front = waiting_.front();
    const size_t common = std::min(front.text.size(), text.size());
    const bool belongs = front.text.compare(0, common, text.substr(0, common)) == 0;
    if (belongs && common < front.text.size()) {
      // Only a part of it has been shown; the token waits for the rest.
      front.text.erase(0, common);
      return;
    }
    if (belongs) {
      text.remove_prefix(common);
      visible_.push_back({std::move(front.logprobs), reasoning});
    }
    waiting_.pop_front();
  }
}

}  // namespace peregrine
