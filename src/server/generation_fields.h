// The members that chat and text completions share: sampling, limits, stop strings.
#pragma once

#include <string>
#include <vector>

#include "server/generation.h"
#include "server/request_fields.h"
#include "server/request_log.h"
#include "server/service.h"

namespace peregrine {

inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxChoices = 128;

// temperature, top_p, top_k, min_p, the penalties, seed, logit_bias; not logprobs.
SamplingParams parse_sampling(RequestFields& fields);

// The model's name as the request has it; the server's own when absent. Throws ApiError 404 for
// another name when names are strict.
std::string parse_model(RequestFields& fields, const Service& service);

struct PlannedRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 0;  // wanted; cut to what the context and the server allow
  std::vector<int32_t> stop_ids;
};
// Throws ApiError 400 context_length_exceeded.
Request engine_request(const Service& service, PlannedRequest planned);

// The seed of choice `index` of a request with this seed; choice 0 keeps it.
uint64_t choice_seed(uint64_t seed, size_t index);

// The start of a request's record: where it came from.
RequestRecord make_record(const Exchange& exchange, std::string endpoint, std::string id);

}  // namespace peregrine
