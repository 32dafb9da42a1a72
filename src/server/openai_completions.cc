#include "server/openai_completions.h"

#include <fmt/format.h>

#include <limits>

#include "server/generation_fields.h"
#include "server/openai_completions_answer.h"
#include "text/control_tokens.h"
#include "text/prompt.h"

namespace peregrine {
namespace {

constexpr int64_t kDefaultTokens = 16;  // the protocol's
constexpr size_t kMaxPrompts = 128;

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // what echo repeats
};

Prompt from_ids(const JsonValue::Array& list, const std::string& field, const Service& service) {
  Prompt prompt;
  const int vocab = service.engine.model().vocab_size();
  for (size_t i = 0; i < list.size(); ++i) {
    const auto id = list[i].as_int64();
    if (!id || *id < 0 || *id >= vocab)
      throw ApiError(
          400,
          fmt::format("{}[{}] is {}, expected a token id from 0 to {}", field, i,
                      list[i].is_number() ? list[i].dump() : list[i].kind_name(), vocab - 1),
          field, "invalid_value");
    prompt.ids.push_back(static_cast<int32_t>(*id));
  }
  prompt.text = service.tokenizer.decode(prompt.ids);
  return prompt;
}

Prompt from_text(const std::string& text, const std::optional<std::string>& suffix,
                 const Service& service) {
  if (!suffix) return {encode_completion(text, service.tokenizer), text};
  const std::string filled =
      "<｜fim▁begin｜>" + text + "<｜fim▁hole｜>" + *suffix + "<｜fim▁end｜>";
  return {encode_completion(filled, service.tokenizer), text};
}

// A string, a list of strings, a list of ids, or a list of lists of ids.
std::vector<Prompt> parse_prompts(RequestFields& fields, const Service& service) {
  const std::string expected =
      fmt::format("a string, a list of token ids, or a list of up to {} of these", kMaxPrompts);
  const JsonValue* value = fields.get("prompt");
  const std::optional<std::string> suffix = fields.string("suffix");
  if (!value) fields.refuse("prompt", expected);
  if (value->string()) return {from_text(*value->string(), suffix, service)};
  if (!value->array() || value->array()->empty()) fields.refuse("prompt", expected);
  const JsonValue::Array& list = *value->array();
  if (list.front().is_number()) return {from_ids(list, "prompt", service)};
  if (list.size() > kMaxPrompts) fields.refuse("prompt", expected);
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].string()) {
      prompts.push_back(from_text(*list[i].string(), suffix, service));
    } else if (list[i].array() && !list[i].array()->empty()) {
      prompts.push_back(from_ids(*list[i].array(), fmt::format("prompt[{}]", i), service));
    } else {
      fields.refuse("prompt", expected);
    }
  }
  return prompts;
}

void parse_stream(RequestFields& fields, CompletionAnswerOptions& options) {
  options.stream = fields.boolean("stream").value_or(false);
  const JsonValue* given = fields.get("stream_options");
  if (!given) return;
  if (!given->is_object()) fields.refuse("stream_options", "an object");
  RequestFields inner(*given, "stream_options.");
  options.include_usage = inner.boolean("include_usage").value_or(false);
}

}  // namespace

void handle_completions(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const JsonValue body = parse_body(exchange->request());
  RequestFields fields(body);
  for (const char* name : {"user", "metadata", "store", "prompt_cache_key"}) fields.know(name);
  CompletionAnswerOptions options{.id = random_id("cmpl-"), .created = unix_time()};
  options.model = parse_model(fields, service);
  std::vector<Prompt> prompts = parse_prompts(fields, service);
  SamplingParams sampling = parse_sampling(fields);
  const auto logprobs = fields.integer("logprobs", 0, kMaxTopLogprobs);
  if (logprobs) sampling.logprobs = static_cast<int>(*logprobs);
  options.logprobs = logprobs.has_value();
  const int64_t max_tokens =
      fields.integer("max_tokens", 1, std::numeric_limits<int32_t>::max()).value_or(kDefaultTokens);
  const std::vector<std::string> stop = fields.strings("stop", kMaxStopStrings);
  const auto n = static_cast<size_t>(fields.integer("n", 1, kMaxChoices).value_or(1));
  const bool echo = fields.boolean("echo").value_or(false);
  const bool ignore_eos = fields.boolean("ignore_eos").value_or(false);
  parse_stream(fields, options);
  if (const std::string warning = unknown_fields_warning(fields.unknown()); !warning.empty())
    options.headers.emplace_back("X-Peregrine-Warning", warning);

  std::vector<int32_t> stop_ids;
  if (const auto eos = service.tokenizer.id_of(control::kEos); eos && !ignore_eos)
    stop_ids.push_back(*eos);
  AnswerPlan plan{.record = make_record(*exchange, "completions", options.id)};
  plan.record.stream = options.stream;
  for (Prompt& prompt : prompts) {
    const Request request = engine_request(service, {.prompt = std::move(prompt.ids),
                                                     .sampling = sampling,
                                                     .max_tokens = max_tokens,
                                                     .stop_ids = stop_ids});
    for (size_t i = 0; i < n; ++i) {
      plan.choices.push_back({.engine = request, .parse = false, .stop = stop});
      if (sampling.seed) plan.choices.back().engine.sampling.seed = choice_seed(*sampling.seed, i);
      if (echo) options.echoes.push_back(prompt.text);
    }
  }
  options.choices = plan.choices.size();
  options.choices_per_prompt = n;
  plan.formatter = make_completion_answer(service, exchange, std::move(options));
  start_answer(service, exchange, std::move(plan));
}

}  // namespace peregrine
