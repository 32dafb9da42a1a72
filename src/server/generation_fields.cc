#include "server/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace peregrine {
namespace {

std::vector<std::pair<int32_t, float>> parse_logit_bias(RequestFields& fields) {
  std::vector<std::pair<int32_t, float>> result;
  const JsonValue* value = fields.get("logit_bias");
  if (!value) return result;
  if (!value->is_object()) fields.refuse("logit_bias", "an object of token ids and numbers");
  RequestFields biases(*value, "logit_bias.");
  for (const JsonMember& member : *value->object()) {
    int32_t id = 0;
    const char* end = member.key.data() + member.key.size();
    const auto [at, error] = std::from_chars(member.key.data(), end, id);
    if (error != std::errc() || at != end)
      throw ApiError(400,
                     fmt::format("logit_bias names token \"{}\", expected token ids",
                                 member.key.substr(0, 40)),
                     "logit_bias", "invalid_value");
    const std::optional<double> bias = biases.number(member.key, -100, 100);
    if (bias) result.emplace_back(id, static_cast<float>(*bias));
  }
  return result;
}

}  // namespace

SamplingParams parse_sampling(RequestFields& fields) {
  SamplingParams p;
  p.temperature = fields.number("temperature", 0, 2).value_or(1.0);
  p.top_p = fields.number("top_p", 0, 1).value_or(1.0);
  // 0 keeps the likeliest token only; the sampler's range begins above it.
  if (p.top_p == 0) p.top_p = std::numeric_limits<double>::min();
  p.top_k = static_cast<int>(
      fields.integer("top_k", -1, std::numeric_limits<int32_t>::max()).value_or(0));
  p.min_p = fields.number("min_p", 0, 1).value_or(0.0);
  p.repetition_penalty = fields.number("repetition_penalty", 1e-6, 1e6).value_or(1.0);
  p.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(0.0);
  p.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(0.0);
  p.logit_bias = parse_logit_bias(fields);
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max());
  if (seed) p.seed = static_cast<uint64_t>(*seed);
  return p;
}

std::string parse_model(RequestFields& fields, const Service& service) {
  const std::string own = service.options.model_name;
  const std::string model = fields.string("model").value_or(own);
  if (service.options.strict_model && model != own)
    throw ApiError(404,
                   fmt::format("the model \"{}\" does not exist, this server has \"{}\"",
                               model.substr(0, 200), own),
                   "model", "model_not_found");
  return model.empty() ? own : model;
}

Request engine_request(const Service& service, PlannedRequest planned) {
  const auto prompt = static_cast<int64_t>(planned.prompt.size());
  const int64_t context = service.context_tokens();
  if (prompt + 1 > context)
    throw ApiError(400,
                   fmt::format("the prompt is too long: {} tokens > {} tokens, the longest that "
                               "the context of {} tokens holds",
                               prompt, context - 1, context),
                   "messages", "context_length_exceeded");
  int64_t longest = std::min(planned.max_tokens, context - prompt);
  if (service.options.max_tokens > 0)
    longest = std::min<int64_t>(longest, service.options.max_tokens);
  Request request;
  request.prompt = std::move(planned.prompt);
  request.sampling = std::move(planned.sampling);
  request.max_tokens = static_cast<int>(longest);
  request.stop_ids = std::move(planned.stop_ids);
  request.draft = service.draft;
  request.deadline_seconds = service.options.deadline_seconds;
  return request;
}

uint64_t choice_seed(uint64_t seed, size_t index) {
  return seed + index * 0x9e3779b97f4a7c15;  // far apart, and the same in every run
}

RequestRecord make_record(const Exchange& exchange, std::string endpoint, std::string id) {
  RequestRecord record;
  record.id = std::move(id);
  record.endpoint = std::move(endpoint);
  record.peer = exchange.request().peer;
  if (const std::string* session = exchange.request().header("x-session-id"))
    record.session = session_hash(*session);
  return record;
}

}  // namespace peregrine
