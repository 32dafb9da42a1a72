#include "server/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace peregrine {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    if (text.empty()) continue;
    Pattern p{.text = std::move(text), .borders = {}};
    p.borders.resize(p.text.size());
    for (size_t i = 1, k = 0; i < p.text.size(); ++i) {
      while (k > 0 && p.text[i] != p.text[k]) k = p.borders[k - 1];
      if (p.text[i] == p.text[k]) ++k;
      p.borders[i] = static_cast<uint32_t>(k);
    }
    patterns_.push_back(std::move(p));
  }
}

std::string StopMatcher::push(std::string_view piece) {
  if (matched()) return {};
  if (patterns_.empty()) return std::string(piece);
  for (const char c : piece) {
    held_ += c;
    size_t longest = 0;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& p = patterns_[i];
      while (p.length > 0 && p.text[p.length] != c) p.length = p.borders[p.length - 1];
      if (p.text[p.length] == c) ++p.length;
      if (p.length < p.text.size()) continue;
      // Of several that end here the longest began first.
      if (p.length > longest) longest = p.length, matched_ = static_cast<int>(i);
    }
    if (!matched()) continue;
    held_.resize(held_.size() - longest);
    return std::exchange(held_, {});
  }
  size_t hold = 0;
  for (const Pattern& p : patterns_) hold = std::max(hold, p.length);
  std::string shown = held_.substr(0, held_.size() - hold);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::flush() {
  for (Pattern& p : patterns_) p.length = 0;
  return std::exchange(held_, {});
}

}  // namespace peregrine
