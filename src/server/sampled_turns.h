// The model's own answers by their tokens, so that the next request of a conversation continues
// exactly what was sampled (spec: api.md section 9).
//
// Clients send earlier answers back as text: with white space trimmed, arguments written anew,
// reasoning left out. Tokenising that would miss the prefix cache from there on. So the tokens of
// an answer are kept under a hash of the conversation up to and with it, in a form in which these
// changes make no difference. An answer whose words were edited is not found and is rendered from
// its text. What is kept is bounded; the least recently used goes first.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/chat.h"
#include "text/prompt.h"

namespace peregrine {

// A hash over messages, one after another; 32 bytes.
class ConversationKey {
 public:
  // Conversations of different owners never meet.
  explicit ConversationKey(const std::string& owner);
  void add(const Message& message);
  const std::string& bytes() const { return hash_; }

 private:
  std::string hash_;
};

struct SampledTurn {
  std::vector<int32_t> ids;  // behind the header of the turn, without the end token
  bool reasoned = false;     // they begin inside reasoning
  std::string reasoning;     // white space at the ends removed
};

// Thread-safe.
class SampledTurns {
 public:
  explicit SampledTurns(size_t max_tokens) : max_tokens_(max_tokens) {}

  void put(const ConversationKey& key, SampledTurn turn);
  // The turn that `message` is, when its reasoning is absent or the same.
  std::shared_ptr<const SampledTurn> find(const ConversationKey& key, const Message& message);
  size_t tokens() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const SampledTurn> turn;
  };
  mutable std::mutex mutex_;
  const size_t max_tokens_;
  size_t tokens_ = 0;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
};

// What the model said with these tokens, as a client would send it back.
Message message_of(const SampledTurn& turn, const Tokenizer& tokenizer, bool parse_tools);

// encode_prompt() with known turns in place of the text of assistant messages: `turns` has one
// entry for each of them in order, null for unknown ones.
std::vector<int32_t> encode_with_turns(
    const RenderedPrompt& prompt, const Tokenizer& tokenizer,
    const std::vector<std::shared_ptr<const SampledTurn>>& turns);

}  // namespace peregrine
