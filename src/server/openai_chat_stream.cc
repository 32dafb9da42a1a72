#include "server/json_writer.h"
#include "server/openai_chat_answer.h"
#include "server/openai_logprobs.h"
#include "server/openai_usage.h"

namespace peregrine {
namespace {

class ChatStream : public AnswerFormatter {
 public:
  ChatStream(const Service& service, std::shared_ptr<Exchange> exchange,
             OpenAiAnswerOptions options)
      : service_(service), exchange_(std::move(exchange)), options_(std::move(options)) {
    JsonWriter w;
    w.begin_object().member("id", options_.id).member("object", "chat.completion.chunk");
    w.member("created", options_.created).member("model", options_.model);
    w.member("system_fingerprint", service_.fingerprint);
    head_ = "data: " + w.take();
  }

  void begin() override {
    exchange_->begin_stream(options_.headers);
    std::string out;
    for (int i = 0; i < options_.choices; ++i)
      out += chunk(static_cast<size_t>(i), R"({"role":"assistant","content":""})");
    exchange_->write(std::move(out));
  }

  void update(size_t choice, const GenerationUpdate& update) override {
    std::string out;
    // The log-probabilities of all tokens that became visible go with the first text.
    std::string logprobs = logprobs_json(update);
    for (const OutputEvent& event : update.events) {
      const std::string delta = delta_json(event);
      if (!delta.empty()) out += chunk(choice, delta, std::exchange(logprobs, "null"));
    }
    if (update.end) {
      usage_.add(*update.end, choice == 0);
      out += chunk(choice, "{}", logprobs, finish_name(update.end->finish));
    }
    exchange_->write(std::move(out));
  }

  void end() override {
    std::string out;
    if (options_.include_usage) {
      JsonWriter w;
      usage_.write(w);
      out += head_ + R"(,"choices":[],"usage":)" + w.text() + "}\n\n";
    }
    exchange_->write(out + "data: [DONE]\n\n");
    exchange_->end_stream();
  }

  void fail(const ApiError& error) override {
    exchange_->write("data: " + error_json(error, Dialect::kOpenAi) + "\n\n");
    exchange_->end_stream();
  }

 private:
  std::string chunk(size_t choice, std::string_view delta, std::string_view logprobs = "null",
                    const char* finish = nullptr) const {
    std::string out = head_ + R"(,"choices":[{"index":)" + std::to_string(choice) + R"(,"delta":)";
    out += delta;
    out += R"(,"logprobs":)";
    out += logprobs;
    out += R"(,"finish_reason":)";
    out += finish ? '"' + std::string(finish) + '"' : "null";
    out += options_.include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n";
    return out;
  }

  std::string logprobs_json(const GenerationUpdate& update) const {
    if (update.logprobs.empty()) return "null";
    JsonWriter w;
    write_chat_logprobs(w, update.logprobs, service_.tokenizer);
    return w.take();
  }

  // Empty: nothing to say about this event.
  std::string delta_json(const OutputEvent& event) const {
    JsonWriter w;
    w.begin_object();
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        w.member("reasoning_content", event.text);
        break;
      case OutputEvent::Kind::kContent:
        w.member("content", event.text);
        break;
      case OutputEvent::Kind::kCallBegin: {
        const ReturnedName name = returned_name(event.text, options_.tools);
        w.key("tool_calls").begin_array().begin_object().member("index", event.call);
        w.member("id", event.id).member("type", "function");
        if (!name.name_space.empty()) w.member("namespace", name.name_space);
        w.key("function").begin_object().member("name", name.name).member("arguments", "");
        w.end_object().end_object().end_array();
        break;
      }
      case OutputEvent::Kind::kArguments:
        w.key("tool_calls").begin_array().begin_object().member("index", event.call);
        w.key("function").begin_object().member("arguments", event.text).end_object();
        w.end_object().end_array();
        break;
      case OutputEvent::Kind::kCallEnd:
        return {};
    }
    return w.end_object().take();
  }

  const Service& service_;
  const std::shared_ptr<Exchange> exchange_;
  const OpenAiAnswerOptions options_;
  std::string head_;  // of every chunk, up to the choices
  OpenAiUsage usage_;
};

}  // namespace

std::shared_ptr<AnswerFormatter> make_chat_stream(const Service& service,
                                                  std::shared_ptr<Exchange> exchange,
                                                  OpenAiAnswerOptions options) {
  return std::make_shared<ChatStream>(service, std::move(exchange), std::move(options));
}

}  // namespace peregrine
