#include "server/openai_completions_answer.h"

#include <algorithm>

#include "server/json_writer.h"
#include "server/openai_logprobs.h"
#include "server/openai_usage.h"

namespace peregrine {
namespace {

constexpr double kNever = -9999.0;  // stands for minus infinity

// The four parallel lists of the old protocol; `offset` is where the tokens' text begins.
void write_logprobs(JsonWriter& w, std::span<const VisibleToken> tokens, size_t offset,
                    const Tokenizer& tokenizer) {
  w.begin_object().key("tokens").begin_array();
  for (const auto& t : tokens) w.value(token_text(tokenizer, t.logprobs.chosen.id));
  w.end_array().key("token_logprobs").begin_array();
  for (const auto& t : tokens) w.value(std::max(t.logprobs.chosen.logprob, kNever));
  w.end_array().key("top_logprobs").begin_array();
  for (const auto& t : tokens) {
    w.begin_object();
    for (const TokenLogprob& top : t.logprobs.top)
      w.member(token_text(tokenizer, top.id), std::max(top.logprob, kNever));
    w.end_object();
  }
  w.end_array().key("text_offset").begin_array();
  for (const auto& t : tokens) {
    w.value(offset);
    offset += tokenizer.token_bytes(t.logprobs.chosen.id).size();
  }
  w.end_array().end_object();
}

struct Choice {
  std::string text;
  size_t shown = 0;  // bytes, the echo included
  std::vector<VisibleToken> logprobs;
  const char* finish = nullptr;
};

class CompletionAnswer : public AnswerFormatter {
 public:
  CompletionAnswer(const Service& service, std::shared_ptr<Exchange> exchange,
                   CompletionAnswerOptions options)
      : service_(service),
        exchange_(std::move(exchange)),
        options_(std::move(options)),
        choices_(options_.choices) {
    for (size_t i = 0; i < options_.echoes.size(); ++i) choices_[i].text = options_.echoes[i];
  }

  void begin() override {
    if (!options_.stream) return;
    exchange_->begin_stream(options_.headers);
    for (size_t i = 0; i < options_.echoes.size(); ++i) send_chunk(i);
  }

  void update(size_t index, const GenerationUpdate& update) override {
    Choice& choice = choices_[index];
    for (const OutputEvent& event : update.events) choice.text += event.text;
    choice.logprobs.insert(choice.logprobs.end(), update.logprobs.begin(), update.logprobs.end());
    if (update.end) {
      choice.finish = finish_name(update.end->finish);
      usage_.add(*update.end, index % options_.choices_per_prompt == 0);
    }
    if (options_.stream) send_chunk(index);
  }

  void end() override {
    JsonWriter w;
    if (!options_.stream) {
      begin_object(w);
      for (size_t i = 0; i < choices_.size(); ++i) write_choice(w, i);
      w.end_array().key("usage");
      usage_.write(w);
      w.end_object();
      return exchange_->respond({.headers = options_.headers, .body = w.take()});
    }
    if (options_.include_usage) {
      begin_object(w);
      w.end_array().key("usage");
      usage_.write(w);
      w.end_object();
      exchange_->write("data: " + w.take() + "\n\n");
    }
    exchange_->write("data: [DONE]\n\n");
    exchange_->end_stream();
  }

  void fail(const ApiError& error) override {
    if (!options_.stream) return exchange_->respond(error_response(error, Dialect::kOpenAi));
    exchange_->write("data: " + error_json(error, Dialect::kOpenAi) + "\n\n");
    exchange_->end_stream();
  }

 private:
  void begin_object(JsonWriter& w) const {
    w.begin_object().member("id", options_.id).member("object", "text_completion");
    w.member("created", options_.created).member("model", options_.model);
    w.member("system_fingerprint", service_.fingerprint).key("choices").begin_array();
  }

  void write_choice(JsonWriter& w, size_t index) const {
    const Choice& choice = choices_[index];
    w.begin_object().member("text", choice.text).member("index", index).key("logprobs");
    // An echo has no log-probabilities: its tokens were not sampled.
    const size_t echo = choice.shown == 0 && index < options_.echoes.size()
                            ? options_.echoes[index].size()
                            : choice.shown;
    options_.logprobs ? write_logprobs(w, choice.logprobs, echo, service_.tokenizer)
                      : void(w.null());
    w.key("finish_reason");
    choice.finish ? w.value(choice.finish) : w.null();
    w.end_object();
  }

  void send_chunk(size_t index) {
    Choice& choice = choices_[index];
    JsonWriter w;
    begin_object(w);
    write_choice(w, index);
    w.end_array();
    if (options_.include_usage) w.key("usage").null();
    w.end_object();
    exchange_->write("data: " + w.take() + "\n\n");
    choice.shown += choice.text.size();
    choice.text.clear();
    choice.logprobs.clear();
  }

  const Service& service_;
  const std::shared_ptr<Exchange> exchange_;
  const CompletionAnswerOptions options_;
  std::vector<Choice> choices_;
  OpenAiUsage usage_;
};

}  // namespace

std::shared_ptr<AnswerFormatter> make_completion_answer(const Service& service,
                                                        std::shared_ptr<Exchange> exchange,
                                                        CompletionAnswerOptions options) {
  return std::make_shared<CompletionAnswer>(service, std::move(exchange), std::move(options));
}

}  // namespace peregrine
