#include "server/anthropic_answer.h"

#include "server/json_writer.h"

namespace peregrine {
namespace {

// Clients want a signature that is not empty; nothing here is checked when it comes back.
constexpr const char* kSignature = "unsigned";

enum class BlockKind { kThinking, kText, kToolUse };

BlockKind block_of(OutputEvent::Kind kind) {
  if (kind == OutputEvent::Kind::kReasoning) return BlockKind::kThinking;
  return kind == OutputEvent::Kind::kContent ? BlockKind::kText : BlockKind::kToolUse;
}

const char* stop_reason(const GenerationEnd& end) {
  if (end.stop_string) return "stop_sequence";
  if (end.finish == FinishReason::kToolCalls) return "tool_use";
  return end.finish == FinishReason::kLength ? "max_tokens" : "end_turn";
}

void write_stop(JsonWriter& w, const GenerationEnd& end) {
  w.member("stop_reason", stop_reason(end)).key("stop_sequence");
  end.stop_string ? w.value(*end.stop_string) : w.null();
}

void write_usage(JsonWriter& w, int64_t prompt, int64_t cached, int64_t output) {
  w.key("usage").begin_object().member("input_tokens", prompt - cached);
  w.member("cache_creation_input_tokens", 0).member("cache_read_input_tokens", cached);
  w.member("output_tokens", output).end_object();
}

void write_usage(JsonWriter& w, const GenerationEnd& end) {
  write_usage(w, end.usage.prompt_tokens, end.usage.cached_tokens, end.completion_tokens);
}

void write_head(JsonWriter& w, const AnthropicAnswerOptions& options) {
  w.member("id", options.id).member("type", "message").member("role", "assistant");
  w.member("model", options.model);
}

// The protocol knows no namespaces, so a name stays as the model wrote it.
void write_tool_use(JsonWriter& w, const std::string& id, const std::string& name,
                    std::string_view input) {
  w.begin_object().member("type", "tool_use").member("id", id).member("name", name);
  w.key("input").raw(input).end_object();
}

// The parser's ids are an OpenAI client's; this protocol has its own prefix.
std::string tool_use_id(const std::string& call_id) {
  return "toolu_" + call_id.substr(call_id.starts_with("call_") ? 5 : 0);
}

class AnthropicObject : public AnswerFormatter {
 public:
  AnthropicObject(std::shared_ptr<Exchange> exchange, AnthropicAnswerOptions options)
      : exchange_(std::move(exchange)), options_(std::move(options)) {}

  void begin() override {}

  void update(size_t, const GenerationUpdate& update) override {
    for (const OutputEvent& event : update.events) collect(event);
    if (update.end) end_ = *update.end;
  }

  void end() override {
    JsonWriter w;
    w.begin_object();
    write_head(w, options_);
    w.key("content").begin_array();
    for (const Block& block : blocks_) write_block(w, block);
    w.end_array();
    write_stop(w, end_);
    write_usage(w, end_);
    w.end_object();
    exchange_->respond({.headers = options_.headers, .body = w.take()});
  }

  void fail(const ApiError& error) override {
    exchange_->respond(error_response(error, Dialect::kAnthropic));
  }

 private:
  struct Block {
    BlockKind kind;
    std::string text, id, name;  // of a call: its arguments so far
    bool complete = false;       // of a call
  };

  void collect(const OutputEvent& event) {
    using Kind = OutputEvent::Kind;
    if (event.kind == Kind::kCallEnd) {
      blocks_.back().complete = true;
    } else if (event.kind == Kind::kCallBegin) {
      blocks_.push_back({BlockKind::kToolUse, {}, tool_use_id(event.id), event.text});
    } else {
      const BlockKind kind = block_of(event.kind);
      if (blocks_.empty() || blocks_.back().kind != kind) blocks_.push_back({kind, {}, {}, {}});
      blocks_.back().text += event.text;
    }
  }

  static void write_block(JsonWriter& w, const Block& block) {
    switch (block.kind) {
      case BlockKind::kThinking:
        w.begin_object().member("type", "thinking").member("thinking", block.text);
        w.member("signature", kSignature).end_object();
        break;
      case BlockKind::kText:
        w.begin_object().member("type", "text").member("text", block.text).end_object();
        break;
      case BlockKind::kToolUse:  // arguments that were cut off are no JSON
        write_tool_use(w, block.id, block.name, block.complete ? block.text : "{}");
        break;
    }
  }

  const std::shared_ptr<Exchange> exchange_;
  const AnthropicAnswerOptions options_;
  std::vector<Block> blocks_;
  GenerationEnd end_;
};

class AnthropicStream : public AnswerFormatter {
 public:
  AnthropicStream(std::shared_ptr<Exchange> exchange, AnthropicAnswerOptions options)
      : exchange_(std::move(exchange)), options_(std::move(options)) {}

  void begin() override {
    exchange_->begin_stream(options_.headers);
    JsonWriter w = event_head("message_start");
    w.key("message").begin_object();
    write_head(w, options_);
    w.key("content").begin_array().end_array();
    w.key("stop_reason").null().key("stop_sequence").null();
    write_usage(w, options_.prompt_tokens, 0, 0);
    w.end_object();
    send("message_start", w);
    JsonWriter ping = event_head("ping");
    send("ping", ping);
    flush();
  }

  void update(size_t, const GenerationUpdate& update) override {
    for (const OutputEvent& event : update.events) show(event);
    if (update.end) end_ = *update.end;
    flush();
  }

  void end() override {
    close_block();
    JsonWriter w = event_head("message_delta");
    w.key("delta").begin_object();
    write_stop(w, end_);
    w.end_object();
    write_usage(w, end_);
    send("message_delta", w);
    JsonWriter stop = event_head("message_stop");
    send("message_stop", stop);
    flush();
    exchange_->end_stream();
  }

  void fail(const ApiError& error) override {
    exchange_->write("event: error\ndata: " + error_json(error, Dialect::kAnthropic) + "\n\n");
    exchange_->end_stream();
  }

 private:
  void show(const OutputEvent& event) {
    using Kind = OutputEvent::Kind;
    const BlockKind kind = block_of(event.kind);
    if (event.kind == Kind::kCallEnd) return close_block();
    if (event.kind == Kind::kCallBegin || !open_ || kind_ != kind) open_block(kind, event);
    if (event.kind == Kind::kCallBegin) return;
    static constexpr const char* kDeltas[] = {"thinking_delta", "text_delta", "input_json_delta"};
    static constexpr const char* kMembers[] = {"thinking", "text", "partial_json"};
    const auto which = static_cast<size_t>(kind);
    send_delta(kDeltas[which], kMembers[which], event.text);
  }

  void open_block(BlockKind kind, const OutputEvent& event) {
    close_block();
    open_ = true;
    kind_ = kind;
    JsonWriter w = event_head("content_block_start");
    w.member("index", index_).key("content_block");
    if (kind == BlockKind::kToolUse) {
      write_tool_use(w, tool_use_id(event.id), event.text, "{}");
    } else if (kind == BlockKind::kThinking) {
      w.begin_object().member("type", "thinking").member("thinking", "");
      w.member("signature", "").end_object();
    } else {
      w.begin_object().member("type", "text").member("text", "").end_object();
    }
    send("content_block_start", w);
  }

  void close_block() {
    if (!open_) return;
    if (kind_ == BlockKind::kThinking) send_delta("signature_delta", "signature", kSignature);
    JsonWriter w = event_head("content_block_stop");
    w.member("index", index_++);
    send("content_block_stop", w);
    open_ = false;
  }

  void send_delta(const char* type, const char* member, std::string_view text) {
    JsonWriter w = event_head("content_block_delta");
    w.member("index", index_).key("delta").begin_object();
    w.member("type", type).member(member, text).end_object();
    send("content_block_delta", w);
  }

  static JsonWriter event_head(const char* type) {
    JsonWriter w;
    w.begin_object().member("type", type);
    return w;
  }

  void send(const char* type, JsonWriter& w) {
    out_ += "event: " + std::string(type) + "\ndata: " + w.end_object().text() + "\n\n";
  }

  void flush() {
    if (!out_.empty()) exchange_->write(std::exchange(out_, {}));
  }

  const std::shared_ptr<Exchange> exchange_;
  const AnthropicAnswerOptions options_;
  std::string out_;  // events of this update
  int index_ = 0;    // of the block that is open, or comes next
  bool open_ = false;
  BlockKind kind_ = BlockKind::kText;
  GenerationEnd end_;
};

}  // namespace

std::shared_ptr<AnswerFormatter> make_anthropic_object(std::shared_ptr<Exchange> exchange,
                                                       AnthropicAnswerOptions options) {
  return std::make_shared<AnthropicObject>(std::move(exchange), std::move(options));
}

std::shared_ptr<AnswerFormatter> make_anthropic_stream(std::shared_ptr<Exchange> exchange,
                                                       AnthropicAnswerOptions options) {
  return std::make_shared<AnthropicStream>(std::move(exchange), std::move(options));
}

}  // namespace peregrine
