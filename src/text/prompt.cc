#include "text/prompt.h"

#include <algorithm>
#include <unordered_map>

#include "base/fail.h"
#include "text/control_tokens.h"
#include "text/prompt_builder.h"

namespace peregrine {
namespace {

// One block of a user turn: what a user wrote, or a tool's result.
struct Block {
  bool is_result = false;
  std::string call_id;
  std::vector<ContentPart> content;
};

// A message after merging; `blocks` replaces the content of user entries.
struct Entry {
  const Message* message;
  Role role;
  std::string task;
  std::vector<Block> blocks;
};

// Section 4.1: tool results and consecutive user messages fold into one user entry.
std::vector<Entry> merge(const std::vector<Message>& messages) {
  std::vector<Entry> entries;
  for (const Message& message : messages) {
    const bool is_tool = message.role == Role::kTool;
    if (!is_tool && message.role != Role::kUser) {
      entries.push_back({&message, message.role, message.task, {}});
      continue;
    }
    const bool after_user = !entries.empty() && entries.back().role == Role::kUser;
    if (!after_user || (!is_tool && !entries.back().task.empty())) {
      entries.push_back({&message, Role::kUser, message.task, {}});
    }
    std::vector<Block>& blocks = entries.back().blocks;
    if (is_tool) {
      blocks.push_back({true, message.tool_call_id, message.content});
    } else if (message.content.empty()) {
      blocks.push_back({});  // a null content counts as an empty text
    } else {
      for (const ContentPart& part : message.content) blocks.push_back({false, {}, {part}});
    }
  }
  return entries;
}

// Section 4.2: the results of one turn come in the order of the calls, in the slots they had.
void sort_results(std::vector<Entry>& entries) {
  std::unordered_map<std::string, size_t> positions;
  const auto position = [&](const Block& block) {
    const auto it = positions.find(block.call_id);
    return it == positions.end() ? 0 : it->second;
  };
  for (Entry& entry : entries) {
    if (entry.role == Role::kAssistant && !entry.message->tool_calls.empty()) {
      positions.clear();
      const std::vector<ToolCall>& calls = entry.message->tool_calls;
      for (size_t i = 0; i < calls.size(); ++i) {
        if (!calls[i].id.empty()) positions[calls[i].id] = i;
      }
    }
    if (positions.empty()) continue;
    std::vector<Block> results;
    for (Block& block : entry.blocks) {
      if (block.is_result) results.push_back(std::move(block));
    }
    std::stable_sort(results.begin(), results.end(),
                     [&](const Block& a, const Block& b) { return position(a) < position(b); });
    auto next = results.begin();
    for (Block& block : entry.blocks) {
      if (block.is_result) block = std::move(*next++);
    }
  }
}

// Section 5 over the merged entries.
class Renderer {
 public:
  Renderer(const ChatRequest& request, std::vector<Entry> entries)
      : request_(request), entries_(std::move(entries)), drop_(request.drop_thinking) {
    for (const Message& message : request.messages) drop_ &= message.tools.empty();
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Role role = entries_[i].role;
      if (role == Role::kUser || (role == Role::kSystem && i > 0)) {
        last_user_ = static_cast<int>(i);
      }
    }
  }

  RenderedPrompt render() {
    out_.control(control::kBos);
    head();
    for (size_t i = 0; i < entries_.size(); ++i) {
      body(static_cast<int>(i));
      transition(static_cast<int>(i));
    }
    result_.segments = out_.take_segments();
    result_.images = out_.take_images();
    return std::move(result_);
  }

 private:
  void head() {
    if (request_.thinking || entries_.front().role == Role::kSystem) {
      out_.control(control::kSystem);
    }
    if (request_.thinking) {
      out_.plain("Reasoning Effort: " + std::to_string(request_.effort) +
                 " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
    }
  }

  void body(int index) {
    const Entry& entry = entries_[index];
    switch (entry.role) {
      case Role::kSystem:
        if (index > 0) out_.control(control::kSystem);
        system(*entry.message);
        break;
      case Role::kAssistant:
        assistant(*entry.message, index);
        break;
      case Role::kLatestReminder:
        out_.control(control::kLatestReminder);
        out_.content(entry.message->content);
        break;
      case Role::kUser:
      case Role::kTool:  // merging has turned these into user entries
        user(entry);
        break;
    }
  }

  void system(const Message& message) {
    out_.content(message.content);
    if (!message.tools.empty()) {
      out_.plain("\n\n");
      render_tools(message.tools, out_);
    }
    if (message.response_schema) {
      out_.plain(
          "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to "
          "reply:\n");
      out_.plain(message.response_schema->dump());
    }
  }

  void user(const Entry& entry) {
    out_.control(control::kUser);
    for (const Block& block : entry.blocks) {
      if (&block != entry.blocks.data()) out_.plain("\n\n");
      if (block.is_result) out_.plain("<tool_result>");
      out_.content(block.content);
      if (block.is_result) out_.plain("</tool_result>");
    }
  }

  void assistant(const Message& message, int index) {
    const bool continued = message.prefix && is_last(index);
    const bool after_task = index > 0 && !entries_[index - 1].task.empty();
    const bool has_text =
        std::any_of(message.content.begin(), message.content.end(),
                    [](const ContentPart& p) { return p.image || !p.text.empty(); });
    if (request_.thinking && !after_task && (!drop_ || index > last_user_)) {
      out_.plain(message.reasoning);
      const bool open =
          continued && !message.reasoning.empty() && !has_text && message.tool_calls.empty();
      if (open) {
        result_.start = OutputStart::kReasoning;
      } else {
        out_.control(control::kThinkEnd);
      }
    }
    out_.content(message.content);
    if (!message.tool_calls.empty()) render_calls(message.tool_calls, out_);
    if (continued) {
      result_.opens_turn = true;
    } else {
      out_.control(control::kEos);
    }
  }

  // What stands between an entry and the next: the header of a turn for the model, where one
  // follows.
  void transition(int index) {
    if (!is_last(index)) {
      const Role next = entries_[index + 1].role;
      if (next != Role::kAssistant && next != Role::kLatestReminder) return;
    }
    const Entry& entry = entries_[index];
    if (!entry.task.empty()) {
      if (entry.task == "action") open_turn(request_.thinking);
      out_.control("<｜" + entry.task + "｜>");
      note_open_turn(index, OutputStart::kContent);
    } else if (entry.role == Role::kUser || (entry.role == Role::kSystem && index > 0)) {
      const bool reasons = request_.thinking && (!drop_ || index >= last_user_);
      open_turn(reasons);
      note_open_turn(index, reasons ? OutputStart::kReasoning : OutputStart::kContent);
    }
  }

  void open_turn(bool reasons) {
    out_.control(control::kAssistant);
    out_.control(reasons ? control::kThink : control::kThinkEnd);
  }

  void note_open_turn(int index, OutputStart start) {
    if (!is_last(index)) return;
    result_.opens_turn = true;
    result_.start = start;
  }

  bool is_last(int index) const { return static_cast<size_t>(index) + 1 == entries_.size(); }

  const ChatRequest& request_;
  std::vector<Entry> entries_;
  bool drop_;           // reasoning of earlier turns is left out; never with tools (section 4.4)
  int last_user_ = -1;  // section 4.3
  PromptBuilder out_;
  RenderedPrompt result_;
};

}  // namespace

std::string RenderedPrompt::text() const {
  std::string all;
  for (const PromptSegment& segment : segments) all += segment.text;
  return all;
}

RenderedPrompt render_prompt(const ChatRequest& request) {
  if (request.messages.empty()) {
    fail(ErrorKind::kInvalidArgument, "the conversation has no messages, expected at least one");
  }
  std::vector<Entry> entries = merge(request.messages);
  sort_results(entries);
  return Renderer(request, std::move(entries)).render();
}

std::vector<int32_t> encode_prompt(const RenderedPrompt& prompt, const Tokenizer& tokenizer,
                                   PromptEncoding encoding) {
  if (encoding == PromptEncoding::kWholeText) {
    const std::string text = prompt.text();
    size_t placeholders = 0;
    for (size_t at = 0; (at = text.find(control::kImage, at)) != text.npos; ++at) ++placeholders;
    if (placeholders != prompt.images.size()) {
      fail(ErrorKind::kInvalidArgument,
           "the messages spell {} in their text, which only images may stand for", control::kImage);
    }
    return tokenizer.encode(text, SpecialTokens::kRecognise);
  }
  std::vector<int32_t> ids;
  for (const PromptSegment& segment : prompt.segments) {
    if (segment.control) {
      const auto id = tokenizer.id_of(segment.text);
      if (!id) fail(ErrorKind::kBadCheckpoint, "the tokenizer has no token {}", segment.text);
      ids.push_back(*id);
    } else {
      const auto plain = tokenizer.encode(segment.text, SpecialTokens::kPlain);
      ids.insert(ids.end(), plain.begin(), plain.end());
    }
  }
  return ids;
}

std::vector<int32_t> encode_completion(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.encode(text, SpecialTokens::kRecognise);
  const auto bos = tokenizer.id_of(control::kBos);
  if (bos && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
  return ids;
}

}  // namespace peregrine
