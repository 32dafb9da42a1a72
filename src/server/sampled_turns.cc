#include "server/sampled_turns.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cmath>

#include "text/control_tokens.h"
#include "text/output_parser.h"

namespace peregrine {
namespace {

constexpr size_t kEntryTokens = 64;  // what an entry costs besides its tokens, about

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// Lengths in front keep neighbours apart.
void append_part(std::string& out, const std::string& part) {
  out += std::to_string(part.size()) + ":" + part;
}

// One text for all ways of writing a value: keys sorted, 1.0 like 1, no white space.
void append_canonical(std::string& out, const JsonValue& value) {
  if (const auto* object = value.object()) {
    std::vector<const JsonMember*> members;
    for (const JsonMember& member : *object) members.push_back(&member);
    std::sort(members.begin(), members.end(), [](auto* a, auto* b) { return a->key < b->key; });
    out += '{';
    for (const JsonMember* member : members) {
      append_part(out, member->key);
      append_canonical(out, member->value);
    }
    out += '}';
  } else if (const auto* array = value.array()) {
    out += '[';
    for (const JsonValue& item : *array) {
      append_canonical(out, item);
      out += ',';
    }
    out += ']';
  } else if (const double* number = value.floating();
             number && std::floor(*number) == *number && std::abs(*number) < 1e15) {
    out += std::to_string(static_cast<int64_t>(*number));
  } else {
    out += value.dump();
  }
}

std::string canonical(const Message& message) {
  std::string out(1, static_cast<char>('0' + static_cast<int>(message.role)));
  std::string text;
  for (const ContentPart& part : message.content) {
    if (&part != message.content.data()) text += "\n\n";
    text += part.image ? part.image->value.dump() : part.text;
  }
  append_part(out, message.role == Role::kAssistant ? trimmed(text) : text);
  for (const ToolCall& call : message.tool_calls) {
    append_part(out, call.printed_name);
    append_canonical(out, call.arguments);
  }
  return out;
}

std::string digest(const std::string& bytes) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

}  // namespace

ConversationKey::ConversationKey(const std::string& owner) : hash_(digest(owner)) {}

void ConversationKey::add(const Message& message) { hash_ = digest(hash_ + canonical(message)); }

void SampledTurns::put(const ConversationKey& key, SampledTurn turn) {
  const size_t cost = turn.ids.size() + kEntryTokens;
  const std::lock_guard lock(mutex_);
  if (cost > max_tokens_) return;
  if (const auto known = by_key_.find(key.bytes()); known != by_key_.end()) {
    tokens_ -= known->second->turn->ids.size() + kEntryTokens;
    entries_.erase(known->second);
    by_key_.erase(known);
  }
  entries_.push_front({key.bytes(), std::make_shared<const SampledTurn>(std::move(turn))});
  by_key_[key.bytes()] = entries_.begin();
  tokens_ += cost;
  while (tokens_ > max_tokens_) {
    tokens_ -= entries_.back().turn->ids.size() + kEntryTokens;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

std::shared_ptr<const SampledTurn> SampledTurns::find(const ConversationKey& key,
                                                      const Message& message) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key.bytes());
  if (found == by_key_.end()) return nullptr;
  const std::string reasoning = trimmed(message.reasoning);
  if (!reasoning.empty() && reasoning != found->second->turn->reasoning) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->turn;
}

size_t SampledTurns::tokens() const {
  const std::lock_guard lock(mutex_);
  return tokens_;
}

Message message_of(const SampledTurn& turn, const Tokenizer& tokenizer, bool parse_tools) {
  OutputParser parser({.start = turn.reasoned ? OutputStart::kReasoning : OutputStart::kContent,
                       .parse_tools = parse_tools,
                       .make_call_id = [] { return std::string(); }});
  Message message;
  message.role = Role::kAssistant;
  std::string text;
  std::vector<std::string> arguments;
  const auto collect = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      if (event.kind == OutputEvent::Kind::kReasoning) message.reasoning += event.text;
      if (event.kind == OutputEvent::Kind::kContent) text += event.text;
      if (event.kind == OutputEvent::Kind::kArguments) arguments.back() += event.text;
      if (event.kind != OutputEvent::Kind::kCallBegin) continue;
      message.tool_calls.push_back({{}, event.text, JsonValue()});
      arguments.emplace_back();
    }
  };
  collect(parser.push(tokenizer.decode(turn.ids)));
  collect(parser.finish(StopCause::kEndOfTurn));
  message.content.push_back({.text = std::move(text)});
  for (size_t i = 0; i < arguments.size(); ++i)
    message.tool_calls[i].arguments = parse_arguments(JsonValue(arguments[i]));
  message.reasoning = trimmed(message.reasoning);
  return message;
}

std::vector<int32_t> encode_with_turns(
    const RenderedPrompt& prompt, const Tokenizer& tokenizer,
    const std::vector<std::shared_ptr<const SampledTurn>>& turns) {
  std::vector<int32_t> ids;
  RenderedPrompt stretch;  // what lies between known turns
  const auto encode_stretch = [&] {
    const std::vector<int32_t> more = encode_prompt(stretch, tokenizer);
    ids.insert(ids.end(), more.begin(), more.end());
    stretch.segments.clear();
  };
  size_t turn = 0;
  bool skipping = false;  // the text of a known turn
  for (size_t i = 0; i < prompt.segments.size(); ++i) {
    const PromptSegment& segment = prompt.segments[i];
    if (skipping && !(segment.control && segment.text == control::kEos)) continue;
    skipping = false;
    stretch.segments.push_back(segment);
    // A turn begins behind its mode switch, which follows the header.
    const bool header = segment.control && i > 0 && prompt.segments[i - 1].control &&
                        prompt.segments[i - 1].text == control::kAssistant;
    if (!header || turn >= turns.size()) continue;
    const auto& known = turns[turn++];
    if (!known || known->reasoned != (segment.text == control::kThink)) continue;
    encode_stretch();
    ids.insert(ids.end(), known->ids.begin(), known->ids.end());
    skipping = true;
  }
  encode_stretch();
  return ids;
}

}  // namespace peregrine
