#include "conversation.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "chat_request.h"
#include "input.h"
#include "text/control_tokens.h"

namespace peregrine {
namespace {

using Json = nlohmann::ordered_json;

int32_t control_id(const Tokenizer& tokenizer, std::string_view spelling) {
  const auto id = tokenizer.id_of(spelling);
  if (!id) fail(ErrorKind::kBadCheckpoint, "the tokenizer has no token '{}'", spelling);
  return *id;
}

}  // namespace

Conversation::Prompt Conversation::prompt(const std::string& user,
                                          const Tokenizer& tokenizer) const {
  ChatRequest request;
  set_thinking(thinking, request);
  if (!system.empty()) request.messages.push_back(text_message(Role::kSystem, system));
  for (const Turn& turn : turns_) {
    request.messages.push_back(text_message(Role::kUser, turn.user));
    request.messages.push_back(text_message(Role::kAssistant, turn.text));
  }
  request.messages.push_back(text_message(Role::kUser, user));
  const RenderedPrompt rendered = render_prompt(request);

  Prompt result{.start = rendered.start};
  size_t answer = 0;
  bool inside_answer = false;  // its rendered text gives way to the sampled ids
  for (const PromptSegment& segment : rendered.segments) {
    if (inside_answer && segment.text == control::kEos) inside_answer = false;
    if (inside_answer) continue;
    if (!segment.control) {
      const auto ids = tokenizer.encode(segment.text, SpecialTokens::kPlain);
      result.ids.insert(result.ids.end(), ids.begin(), ids.end());
      continue;
    }
    result.ids.push_back(control_id(tokenizer, segment.text));
    if (segment.text == control::kAssistant && answer < turns_.size()) {
      const std::vector<int32_t>& ids = turns_[answer++].content_ids;
      result.ids.push_back(control_id(tokenizer, control::kThinkEnd));
      result.ids.insert(result.ids.end(), ids.begin(), ids.end());
      inside_answer = true;
    }
  }
  return result;
}

void Conversation::add(const std::string& user, OutputStart start, const Answer& answer,
                       const Tokenizer& tokenizer) {
  auto begin = answer.ids.begin();
  auto end = answer.ids.end();
  if (start == OutputStart::kReasoning) {
    begin = std::find(begin, end, control_id(tokenizer, control::kThinkEnd));
    if (begin != end) ++begin;
  }
  const std::vector<int32_t> stops = tokenizer.end_of_turn_ids();
  if (begin != end && std::find(stops.begin(), stops.end(), *(end - 1)) != stops.end()) --end;
  turns_.push_back({user, answer.reasoning, answer.text, std::vector<int32_t>(begin, end)});
}

void Conversation::save(const std::string& path) const {
  Json turns = Json::array();
  for (const Turn& turn : turns_)
    turns.push_back({{"user", turn.user},
                     {"reasoning", turn.reasoning},
                     {"text", turn.text},
                     {"content_ids", turn.content_ids}});
  const Json all = {{"system", system}, {"thinking", thinking}, {"turns", turns}};
  std::ofstream file(path, std::ios::binary);
  // What was typed may hold bytes that are no UTF-8.
  file << all.dump(1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  if (!file) fail(ErrorKind::kIo, "{}: cannot be written: {}", path, std::strerror(errno));
}

void Conversation::load(const std::string& path, const Tokenizer& tokenizer) {
  const Json all = Json::parse(read_input(path, false), nullptr, /*allow_exceptions=*/false);
  Conversation loaded;
  try {
    loaded.system = all.at("system");
    loaded.thinking = all.at("thinking");
    for (const Json& turn : all.at("turns"))
      loaded.turns_.push_back({turn.at("user"), turn.at("reasoning"), turn.at("text"),
                               turn.at("content_ids").get<std::vector<int32_t>>()});
  } catch (const Json::exception&) {
    fail(ErrorKind::kInvalidArgument, "{}: is not a conversation that /save has written", path);
  }
  ChatRequest ignored;
  set_thinking(loaded.thinking, ignored);
  for (const Turn& turn : loaded.turns_)
    for (const int32_t id : turn.content_ids)
      if (!tokenizer.has(id))
        fail(ErrorKind::kInvalidArgument, "{}: token id {} is not in this model's vocabulary", path,
             id);
  *this = std::move(loaded);
}

}  // namespace peregrine
