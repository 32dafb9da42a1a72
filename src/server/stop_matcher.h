// Finds the first of several stop strings in text that comes in pieces.
//
// However the text is cut, the same text is let through, and never a part of a stop string that
// could still become whole. Time is proportional to the text, whatever the strings' lengths.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace peregrine {

class StopMatcher {
 public:
  // Empty strings match nothing.
  explicit StopMatcher(std::vector<std::string> stops);

  // The text that may be shown now. After a match it is the last text before the stop string and
  // further pieces give nothing.
  std::string push(std::string_view piece);
  // What is held back, which no stop string has claimed; matching starts anew.
  std::string flush();

  bool matched() const { return matched_ >= 0; }
  const std::string& match() const { return patterns_[static_cast<size_t>(matched_)].text; }

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> borders;  // of each prefix: its longest proper prefix that is a suffix
    size_t length = 0;              // of the prefix that the text ends with
  };
  std::vector<Pattern> patterns_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace peregrine
