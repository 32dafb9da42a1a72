#include "server/responses_item.h"

#include "server/responses_input.h"
#include "server/service.h"

namespace peregrine {
namespace {

using Kind = ResponsesItem::Kind;

struct KindNames {
  const char *type, *id_prefix, *delta, *done, *member;
};

const KindNames& names(Kind kind) {
  static constexpr KindNames kNames[] = {
      {"reasoning", "rs_", "response.reasoning_text.delta", "response.reasoning_text.done", "text"},
      {"message", "msg_", "response.output_text.delta", "response.output_text.done", "text"},
      {"function_call", "fc_", "response.function_call_arguments.delta",
       "response.function_call_arguments.done", "arguments"},
      {"custom_tool_call", "ctc_", "response.custom_tool_call_input.delta",
       "response.custom_tool_call_input.done", "input"}};
  return kNames[static_cast<size_t>(kind)];
}

void write_reasoning(JsonWriter& w, const ResponsesItem& item, bool begun) {
  w.key("summary").begin_array();
  if (item.show_summary && !begun) write_summary_part(w, item.text);
  w.end_array().key("content").begin_array();
  if (!begun) write_part(w, item.kind, item.text);
  w.end_array().key("encrypted_content");
  item.sealed && !begun ? w.value(seal_reasoning(item.text)) : w.null();
}

void write_call(JsonWriter& w, const ResponsesItem& item, bool begun) {
  w.member("call_id", item.call_id).member("name", item.name);
  if (!item.name_space.empty()) w.member("namespace", item.name_space);
  w.member(names(item.kind).member, begun ? std::string() : item.text);
}

}  // namespace

std::string new_item_id(Kind kind) { return random_id(names(kind).id_prefix); }
const char* delta_event(Kind kind) { return names(kind).delta; }
const char* done_event(Kind kind) { return names(kind).done; }
const char* done_member(Kind kind) { return names(kind).member; }

void write_part(JsonWriter& w, Kind kind, const std::string& text) {
  if (kind == Kind::kReasoning) {
    w.begin_object().member("type", "reasoning_text").member("text", text).end_object();
    return;
  }
  w.begin_object().member("type", "output_text").member("text", text);
  w.key("annotations").begin_array().end_array().key("logprobs").begin_array().end_array();
  w.end_object();
}

void write_summary_part(JsonWriter& w, const std::string& text) {
  w.begin_object().member("type", "summary_text").member("text", text).end_object();
}

void write_item(JsonWriter& w, const ResponsesItem& item, const std::string& status) {
  const bool begun = status == "in_progress";
  w.begin_object().member("type", names(item.kind).type).member("id", item.id);
  if (item.kind == Kind::kReasoning) {
    write_reasoning(w, item, begun);
  } else if (item.is_call()) {
    write_call(w, item, begun);
  } else {
    w.member("role", "assistant").key("content").begin_array();
    if (!begun) write_part(w, item.kind, item.text);
    w.end_array();
  }
  w.member("status", status).end_object();
}

}  // namespace peregrine
