#include "server/json_writer.h"
#include "server/openai_chat_answer.h"
#include "server/openai_logprobs.h"
#include "server/openai_usage.h"

namespace peregrine {
namespace {

struct Call {
  std::string id, name, arguments;
};

struct Choice {
  std::string reasoning, content;
  std::vector<Call> calls;
  std::vector<VisibleToken> logprobs;
  FinishReason finish = FinishReason::kStop;
};

class ChatObject : public AnswerFormatter {
 public:
  ChatObject(const Service& service, std::shared_ptr<Exchange> exchange,
             OpenAiAnswerOptions options)
      : service_(service),
        exchange_(std::move(exchange)),
        options_(std::move(options)),
        choices_(static_cast<size_t>(options_.choices)) {}

  void begin() override {}

  void update(size_t index, const GenerationUpdate& update) override {
    Choice& choice = choices_[index];
    for (const OutputEvent& event : update.events) collect(choice, event);
    choice.logprobs.insert(choice.logprobs.end(), update.logprobs.begin(), update.logprobs.end());
    if (!update.end) return;
    choice.finish = update.end->finish;
    usage_.add(*update.end, index == 0);
  }

  void end() override {
    JsonWriter w;
    w.begin_object().member("id", options_.id).member("object", "chat.completion");
    w.member("created", options_.created).member("model", options_.model);
    w.member("system_fingerprint", service_.fingerprint).key("choices").begin_array();
    for (size_t i = 0; i < choices_.size(); ++i) write_choice(w, i);
    w.end_array().key("usage");
    usage_.write(w);
    w.end_object();
    exchange_->respond({.headers = options_.headers, .body = w.take()});
  }

  void fail(const ApiError& error) override {
    exchange_->respond(error_response(error, Dialect::kOpenAi));
  }

 private:
  static void collect(Choice& choice, const OutputEvent& event) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        choice.reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        choice.content += event.text;
        break;
      case OutputEvent::Kind::kCallBegin:
        choice.calls.push_back({event.id, event.text, {}});
        break;
      case OutputEvent::Kind::kArguments:
        choice.calls.back().arguments += event.text;
        break;
      case OutputEvent::Kind::kCallEnd:
        break;
    }
  }

  void write_choice(JsonWriter& w, size_t index) const {
    const Choice& choice = choices_[index];
    w.begin_object().member("index", index).key("message").begin_object();
    w.member("role", "assistant").key("content");
    choice.content.empty() && !choice.calls.empty() ? w.null() : w.value(choice.content);
    if (options_.thinking) w.member("reasoning_content", choice.reasoning);
    if (!choice.calls.empty()) {
      w.key("tool_calls").begin_array();
      for (const Call& call : choice.calls) write_call(w, call);
      w.end_array();
    }
    w.end_object().key("logprobs");
    options_.logprobs ? write_chat_logprobs(w, choice.logprobs, service_.tokenizer)
                      : void(w.null());
    w.member("finish_reason", finish_name(choice.finish)).end_object();
  }

  void write_call(JsonWriter& w, const Call& call) const {
    const ReturnedName name = returned_name(call.name, options_.tools);
    w.begin_object().member("id", call.id).member("type", "function");
    if (!name.name_space.empty()) w.member("namespace", name.name_space);
    w.key("function").begin_object().member("name", name.name);
    w.member("arguments", call.arguments).end_object().end_object();
  }

  const Service& service_;
  const std::shared_ptr<Exchange> exchange_;
  const OpenAiAnswerOptions options_;
  std::vector<Choice> choices_;
  OpenAiUsage usage_;
};

}  // namespace

std::shared_ptr<AnswerFormatter> make_chat_object(const Service& service,
                                                  std::shared_ptr<Exchange> exchange,
                                                  OpenAiAnswerOptions options) {
  return std::make_shared<ChatObject>(service, std::move(exchange), std::move(options));
}

}  // namespace peregrine
