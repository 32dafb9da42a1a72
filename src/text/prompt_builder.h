// Collects the stretches of a prompt while it is rendered.
#pragma once

#include <string_view>

#include "text/prompt.h"

namespace peregrine {

class PromptBuilder {
 public:
  // Text from outside: never becomes a control token.
  void plain(std::string_view text);
  // The spelling of one control token.
  void control(std::string_view spelling);
  // Text of the template: <think>, </think> and the DSML marker in it are control tokens.
  void literal(std::string_view text);
  // Image parts become placeholders; parts are joined with blank lines.
  void content(const std::vector<ContentPart>& parts);

  std::vector<PromptSegment> take_segments() { return std::move(segments_); }
  std::vector<ImageRecord> take_images() { return std::move(images_); }

 private:
  std::vector<PromptSegment> segments_;
  std::vector<ImageRecord> images_;
};

// Section 6 with the schemas of `tools`, and section 7 for the calls of one assistant turn.
void render_tools(const std::vector<Tool>& tools, PromptBuilder& out);
void render_calls(const std::vector<ToolCall>& calls, PromptBuilder& out);

}  // namespace peregrine
