#include "server/openai_usage.h"

namespace peregrine {

void OpenAiUsage::add(const GenerationEnd& end, bool counts_prompt) {
  if (counts_prompt) {
    prompt_ += end.usage.prompt_tokens;
    cached_ += end.usage.cached_tokens;
  }
  completion_ += end.completion_tokens;
  reasoning_ += end.reasoning_tokens;
}

void OpenAiUsage::write(JsonWriter& w) const {
  w.begin_object();
  w.member("prompt_tokens", prompt_).member("completion_tokens", completion_);
  w.member("total_tokens", prompt_ + completion_);
  w.key("prompt_tokens_details").begin_object().member("cached_tokens", cached_).end_object();
  w.member("prompt_cache_hit_tokens", cached_);
  w.member("prompt_cache_miss_tokens", prompt_ - cached_);
  w.key("completion_tokens_details").begin_object();
  w.member("reasoning_tokens", reasoning_).end_object();
  w.end_object();
}

}  // namespace peregrine
