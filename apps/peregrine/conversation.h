// A chat so far, with the answers as the token ids that were sampled.
//
// Owns: how turns become the next prompt. The template around them is rendered anew each time; an
// answer is never written as text and cut into tokens again, so the state of everything before the
// new message stays valid. Reasoning of earlier turns is left out, as the prompt format wants it
// (spec: encoding.md section 5).
#pragma once

#include <string>
#include <vector>

#include "answer.h"
#include "text/prompt.h"

namespace peregrine {

struct Turn {
  std::string user, reasoning, text;
  std::vector<int32_t> content_ids;  // sampled, behind the reasoning, without an end token
};

class Conversation {
 public:
  std::string system;
  std::string thinking = "off";  // on, off or an effort (chat_request.h)

  struct Prompt {
    std::vector<int32_t> ids;
    OutputStart start = OutputStart::kContent;
  };
  Prompt prompt(const std::string& user, const Tokenizer& tokenizer) const;

  void add(const std::string& user, OutputStart start, const Answer& answer,
           const Tokenizer& tokenizer);
  void clear() { turns_.clear(); }
  size_t turns() const { return turns_.size(); }

  // As one JSON object. Both throw Error; a failed load changes nothing.
  void save(const std::string& path) const;
  void load(const std::string& path, const Tokenizer& tokenizer);

 private:
  std::vector<Turn> turns_;
};

}  // namespace peregrine
