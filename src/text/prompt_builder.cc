#include "text/prompt_builder.h"

#include "text/control_tokens.h"

namespace peregrine {
namespace {

// The words of this text are part of the format.
constexpr std::string_view kToolsHead =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

}  // namespace

void PromptBuilder::plain(std::string_view text) {
  if (text.empty()) return;
  if (segments_.empty() || segments_.back().control) segments_.push_back({{}, false});
  segments_.back().text += text;
}

void PromptBuilder::control(std::string_view spelling) {
  segments_.push_back({std::string(spelling), true});
}

void PromptBuilder::literal(std::string_view text) {
  while (!text.empty()) {
    size_t first = text.size();
    std::string_view found;
    for (const std::string_view spelling : {control::kThink, control::kThinkEnd, control::kDsml}) {
      const size_t at = text.find(spelling);
      if (at < first) {
        first = at;
        found = spelling;
      }
    }
    plain(text.substr(0, first));
    if (!found.empty()) control(found);
    text.remove_prefix(first + found.size());
  }
}

void PromptBuilder::content(const std::vector<ContentPart>& parts) {
  for (const ContentPart& part : parts) {
    if (&part != parts.data()) plain("\n\n");
    if (part.image) {
      control(control::kImage);
      images_.push_back(*part.image);
    } else {
      plain(part.text);
    }
  }
}

void render_tools(const std::vector<Tool>& tools, PromptBuilder& out) {
  out.literal(kToolsHead);
  for (const Tool& tool : tools) {
    if (&tool != tools.data()) out.plain("\n");
    out.plain(tool.schema.dump());
  }
  out.plain(kToolsTail);
}

void render_calls(const std::vector<ToolCall>& calls, PromptBuilder& out) {
  out.literal("\n\n<｜DSML｜ calls>\n");
  for (const ToolCall& call : calls) {
    out.literal("<｜DSML｜ invoke name=\"");
    out.plain(call.printed_name);
    out.plain("\">\n");
    const JsonValue::Object& arguments = *call.arguments.object();
    for (const JsonMember& argument : arguments) {
      if (&argument != arguments.data()) out.plain("\n");
      const std::string* text = argument.value.string();
      out.literal("<｜DSML｜ parameter name=\"");
      out.plain(argument.key);
      out.plain(text ? "\" string=\"true\">" : "\" string=\"false\">");
      out.plain(text ? *text : argument.value.dump());
      out.literal("</｜DSML｜ parameter>");
    }
    out.literal("\n</｜DSML｜ invoke>\n");
  }
  out.literal("</｜DSML｜ calls>");
}

}  // namespace peregrine
