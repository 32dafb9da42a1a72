// A conversation as the prompt format sees it, and how an OpenAI-style request becomes one
// (spec: encoding.md section 3).
//
// Owns: the message types and every request rule that does not need the model: roles, modes,
// effort, tools and their namespaces, response formats, images. Refuses: whatever a client has got
// wrong, as Error(kInvalidArgument) that names the field.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_text.h"

namespace peregrine {

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };

// Where an image comes from; exactly one source, as the client gave it.
struct ImageRecord {
  std::string source_field;  // "url", "source" (Anthropic-style object) or "data"
  JsonValue value;           // never null or an empty string
};

struct ContentPart {
  std::string text;                  // of a text part
  std::optional<ImageRecord> image;  // set: an image part
};

// A function the model may call; names are resolved by the namespace rule of section 6.
struct Tool {
  std::string declared_name;  // function.name as the client wrote it
  std::string name_space;     // empty: none
  std::string printed_name;   // "namespace::name", or the name alone
  JsonValue schema;           // the function object as it is printed into the prompt
};

struct ToolCall {
  std::string id;            // may be empty; orders the results
  std::string printed_name;  // as for Tool
  JsonValue arguments;       // always an object
};

struct Message {
  Role role = Role::kUser;
  std::vector<ContentPart> content;
  std::string reasoning;             // assistant; may be empty
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  std::string task;                  // quick-instruction task, e.g. "title"; empty: none
  bool prefix = false;               // assistant, last message: continue it
  std::vector<Tool> tools;           // printed for system messages only
  std::optional<JsonValue> response_schema;
};

enum class ToolChoice { kAuto, kNone, kRequired, kFunction };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema };

struct ChatRequest {
  std::vector<Message> messages;  // tools and schema are attached to the leading system message
  bool thinking = true;
  int effort = 75;  // 1..100; used when thinking
  bool drop_thinking = true;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_choice_name;  // with kFunction: the declared name
  ResponseFormat response_format = ResponseFormat::kText;
  // Where the protocol has the schema, for errors about it.
  std::string schema_field = "response_format.json_schema.schema";

  // All tools on offer; empty with ToolChoice::kNone.
  const std::vector<Tool>& tools() const;
  // Whether the output may hold tool calls.
  bool parse_tools() const { return !tools().empty(); }
};

inline constexpr int kDefaultEffort = 75;

// Reads messages, tools, tool_choice, response_format, thinking, reasoning_effort, drop_thinking
// and chat_template_kwargs of a chat request; other members are the caller's. Accepts the
// extensions prefix, task and role latest_reminder. A conversation that gives the model no turn is
// accepted here (RenderedPrompt::opens_turn tells).
ChatRequest parse_chat_request(const JsonValue& request);

// Attaches tools and schema to the leading system message, inserting an empty one when the
// conversation starts otherwise; does nothing when both are absent.
void attach_to_system(std::vector<Message>& messages, std::vector<Tool> tools,
                      std::optional<JsonValue> response_schema);

// `{"type": "function", "function": {...}, "namespace": ...}`; `field` names it in errors.
Tool parse_tool(const JsonValue& tool, const std::string& field);

// The effort of a name ("high") or an integer from 1 to 100; 0 for "none", which switches thinking
// off. `field` names it in errors.
int parse_effort(const JsonValue& effort, std::string_view field);

// Section 7: the arguments object of a call from `function.arguments`, a JSON string or an object.
JsonValue parse_arguments(const JsonValue& arguments);

// A control token exists for each of these: action, query, authority, domain, title, read_url.
bool is_known_task(std::string_view task);

// How a call that the model made is returned (section 11.4): unchanged when a tool of this full
// name was declared; otherwise split when it has one "::" and a tool of that namespace was
// declared.
struct ReturnedName {
  std::string name;
  std::string name_space;  // empty: none
};
ReturnedName returned_name(std::string_view parsed_name, const std::vector<Tool>& tools);

}  // namespace peregrine
