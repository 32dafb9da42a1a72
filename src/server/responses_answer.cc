#include "server/responses_answer.h"

#include "server/custom_input.h"
#include "server/json_writer.h"
#include "server/responses_item.h"

namespace peregrine {
namespace {

class ResponsesAnswer : public AnswerFormatter {
 public:
  ResponsesAnswer(std::shared_ptr<Exchange> exchange, ResponsesAnswerOptions options)
      : exchange_(std::move(exchange)), options_(std::move(options)) {}

  void begin() override {
    if (!options_.stream) return;
    exchange_->begin_stream(options_.headers);
    send_response("response.created", "in_progress");
    send_response("response.in_progress", "in_progress");
    flush();
  }

  void update(size_t, const GenerationUpdate& update) override {
    for (const OutputEvent& event : update.events) show(event);
    if (update.end) end_ = *update.end;
    flush();
  }

  void end() override {
    const char* status = end_.finish == FinishReason::kLength ? "incomplete" : "completed";
    close_item(status);
    ended_ = true;
    if (!options_.stream) {
      JsonWriter w;
      write_response(w, status);
      return exchange_->respond({.headers = options_.headers, .body = w.take()});
    }
    send_response("response." + std::string(status), status);
    flush();
    exchange_->end_stream();
  }

  void fail(const ApiError& error) override {
    if (!options_.stream) return exchange_->respond(error_response(error, Dialect::kOpenAi));
    error_ = &error;
    send_response("response.failed", "failed");
    error_ = nullptr;
    flush();
    exchange_->end_stream();
  }

 private:
  using Kind = OutputEvent::Kind;

  void show(const OutputEvent& event) {
    switch (event.kind) {
      case Kind::kReasoning:
        continue_item(ResponsesItem::Kind::kReasoning);
        return add_text(event.text);
      case Kind::kContent:
        continue_item(ResponsesItem::Kind::kMessage);
        return add_text(event.text);
      case Kind::kCallBegin:
        return open_call(event);
      case Kind::kArguments:
        return add_text(item().kind == ResponsesItem::Kind::kCustomCall
                            ? custom_input_.push(event.text)
                            : event.text);
      case Kind::kCallEnd:
        return close_item("completed");
    }
  }

  ResponsesItem& item() { return items_.back(); }

  void continue_item(ResponsesItem::Kind kind) {
    if (!open_ || item().kind != kind) open_item({.kind = kind});
  }

  void open_call(const OutputEvent& event) {
    const ReturnedName name = returned_name(event.text, options_.tools);
    const bool custom = options_.custom_tools.contains(name.name);
    custom_input_ = {};
    open_item(
        {.kind = custom ? ResponsesItem::Kind::kCustomCall : ResponsesItem::Kind::kFunctionCall,
         .call_id = event.id,
         .name = name.name,
         .name_space = name.name_space});
  }

  void open_item(ResponsesItem started) {
    close_item("completed");
    open_ = true;
    items_.push_back(std::move(started));
    item().id = new_item_id(item().kind);
    item().show_summary = options_.summary;
    item().sealed = options_.sealed;
    if (!options_.stream) return;
    JsonWriter w = event_head("response.output_item.added");
    w.member("output_index", items_.size() - 1).key("item");
    write_item(w, item(), "in_progress");
    send(w);
    if (item().is_call()) return;
    send_part("response.content_part.added", {});
    if (summarised()) send_summary_part("response.reasoning_summary_part.added", {});
  }

  void add_text(const std::string& text) {
    if (text.empty()) return;
    item().text += text;
    if (!options_.stream) return;
    send_text(delta_event(item().kind), "delta", text);
    if (summarised()) send_summary_text("response.reasoning_summary_text.delta", "delta", text);
  }

  void close_item(const char* status) {
    if (!open_) return;
    if (item().kind == ResponsesItem::Kind::kCustomCall) add_text(custom_input_.finish());
    open_ = false;
    item().status = status;
    if (!options_.stream) return;
    send_text(done_event(item().kind), done_member(item().kind), item().text);
    if (!item().is_call()) send_part("response.content_part.done", item().text);
    if (summarised()) {
      send_summary_text("response.reasoning_summary_text.done", "text", item().text);
      send_summary_part("response.reasoning_summary_part.done", item().text);
    }
    JsonWriter w = event_head("response.output_item.done");
    w.member("output_index", items_.size() - 1).key("item");
    write_item(w, item(), status);
    send(w);
  }

  bool summarised() { return options_.summary && item().kind == ResponsesItem::Kind::kReasoning; }

  void send_text(const char* type, const char* member, const std::string& text) {
    JsonWriter w = item_event(type);
    if (!item().is_call()) w.member("content_index", 0);
    w.member(member, text);
    if (item().kind == ResponsesItem::Kind::kMessage) w.key("logprobs").begin_array().end_array();
    if (item().kind == ResponsesItem::Kind::kFunctionCall && std::string_view(member) != "delta")
      w.member("name", item().name);
    send(w);
  }

  void send_part(const char* type, const std::string& text) {
    JsonWriter w = item_event(type);
    w.member("content_index", 0).key("part");
    write_part(w, item().kind, text);
    send(w);
  }

  void send_summary_text(const char* type, const char* member, const std::string& text) {
    JsonWriter w = item_event(type);
    w.member("summary_index", 0).member(member, text);
    send(w);
  }

  void send_summary_part(const char* type, const std::string& text) {
    JsonWriter w = item_event(type);
    w.member("summary_index", 0).key("part");
    write_summary_part(w, text);
    send(w);
  }

  void send_response(const std::string& type, const char* status) {
    JsonWriter w = event_head(type);
    w.key("response");
    write_response(w, status);
    send(w);
  }

  void write_response(JsonWriter& w, const char* status) const {
    w.begin_object().member("id", options_.id).member("object", "response");
    w.member("created_at", options_.created).member("status", status);
    w.member("model", options_.model).key("output").begin_array();
    for (const ResponsesItem& item : items_)
      if (!item.status.empty()) write_item(w, item, item.status.c_str());
    w.end_array().key("usage");
    ended_ ? write_usage(w) : void(w.null());
    w.key("error");
    if (error_) {
      w.begin_object().member("code", "server_error").member("message", error_->message);
      w.end_object();
    } else {
      w.null();
    }
    w.key("incomplete_details");
    std::string_view(status) == "incomplete" ? w.raw(R"({"reason":"max_output_tokens"})")
                                             : w.null();
    for (const auto& [name, json] : options_.echo) w.key(name).raw(json);
    w.end_object();
  }

  void write_usage(JsonWriter& w) const {
    const int64_t prompt = end_.usage.prompt_tokens, output = end_.completion_tokens;
    w.begin_object().member("input_tokens", prompt).key("input_tokens_details").begin_object();
    w.member("cached_tokens", end_.usage.cached_tokens).end_object();
    w.member("output_tokens", output).key("output_tokens_details").begin_object();
    w.member("reasoning_tokens", end_.reasoning_tokens).end_object();
    w.member("total_tokens", prompt + output).end_object();
  }

  JsonWriter event_head(std::string_view type) {
    JsonWriter w;
    w.begin_object().member("type", type).member("sequence_number", sequence_++);
    out_ += "event: " + std::string(type) + "\ndata: ";
    return w;
  }

  JsonWriter item_event(const char* type) {
    JsonWriter w = event_head(type);
    w.member("item_id", item().id).member("output_index", items_.size() - 1);
    return w;
  }

  void send(JsonWriter& w) { out_ += w.end_object().text() + "\n\n"; }

  void flush() {
    if (!out_.empty()) exchange_->write(std::exchange(out_, {}));
  }

  const std::shared_ptr<Exchange> exchange_;
  const ResponsesAnswerOptions options_;
  std::vector<ResponsesItem> items_;
  bool open_ = false;  // the last item is still written
  CustomInput custom_input_;
  GenerationEnd end_;
  bool ended_ = false;
  const ApiError* error_ = nullptr;
  int64_t sequence_ = 0;
  std::string out_;  // events of this update
};

}  // namespace

std::shared_ptr<AnswerFormatter> make_responses_answer(std::shared_ptr<Exchange> exchange,
                                                       ResponsesAnswerOptions options) {
  return std::make_shared<ResponsesAnswer>(std::move(exchange), std::move(options));
}

}  // namespace peregrine
