// One item of a response's output, and its JSON (spec: api.md section 8.2).
#pragma once

#include <string>

#include "server/json_writer.h"

namespace peregrine {

struct ResponsesItem {
  enum class Kind { kReasoning, kMessage, kFunctionCall, kCustomCall };
  Kind kind;
  std::string call_id = {}, name = {}, name_space = {};  // of calls
  std::string id = {};
  std::string text = {};    // of a call: its arguments or its input
  std::string status = {};  // empty: not complete
  bool show_summary = false, sealed = false;

  bool is_call() const { return kind == Kind::kFunctionCall || kind == Kind::kCustomCall; }
};

std::string new_item_id(ResponsesItem::Kind kind);

// `status` "in_progress": without what the item holds so far.
void write_item(JsonWriter& w, const ResponsesItem& item, const std::string& status);

// The one content part of a message or reasoning item, and of a reasoning item's summary.
void write_part(JsonWriter& w, ResponsesItem::Kind kind, const std::string& text);
void write_summary_part(JsonWriter& w, const std::string& text);

// Names of the events that carry an item's text, and of the member that holds all of it.
const char* delta_event(ResponsesItem::Kind kind);
const char* done_event(ResponsesItem::Kind kind);
const char* done_member(ResponsesItem::Kind kind);

}  // namespace peregrine
