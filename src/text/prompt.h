// Renders a conversation into the model's prompt and turns the prompt into token ids
// (spec: encoding.md sections 4 to 7 and 9, tokenizer.md section 10).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/tokenizer.h"

namespace peregrine {

// A stretch of the prompt. Neighbours are never both plain, so that cutting plain text into tokens
// does not depend on how it was put together.
struct PromptSegment {
  std::string text;
  bool control = false;  // the spelling of one control token that the template wrote
};

enum class OutputStart { kReasoning, kContent };

struct RenderedPrompt {
  std::vector<PromptSegment> segments;        // starts with BOS
  std::vector<ImageRecord> images;            // in the order of their placeholders
  OutputStart start = OutputStart::kContent;  // what the model goes on with
  // False when the prompt ends without a turn for the model: the last message is an assistant's
  // without `prefix`, a reminder, or a lone system message. A server refuses the first.
  bool opens_turn = false;

  std::string text() const;  // the segments joined: the reference's prompt string
};

// `request` must hold at least one message, else Error(kInvalidArgument).
RenderedPrompt render_prompt(const ChatRequest& request);

enum class PromptEncoding {
  // Control tokens only where the template wrote them; spellings in supplied text stay text.
  kSegments,
  // The reference: the whole string is tokenized, so supplied text can form control tokens. Refuses
  // prompts where it forms image placeholders (Error(kInvalidArgument)).
  kWholeText
};

// Image placeholders are one id each; expanding them is the caller's. Throws Error(kBadCheckpoint)
// when the tokenizer lacks a control token that the prompt needs.
std::vector<int32_t> encode_prompt(const RenderedPrompt& prompt, const Tokenizer& tokenizer,
                                   PromptEncoding encoding = PromptEncoding::kSegments);

// For a plain completion: `text` with control spellings recognised, BOS in front unless it is
// there.
std::vector<int32_t> encode_completion(std::string_view text, const Tokenizer& tokenizer);

}  // namespace peregrine
