// The usage object of OpenAI answers, summed over the choices.
#pragma once

#include "server/generation.h"
#include "server/json_writer.h"

namespace peregrine {

class OpenAiUsage {
 public:
  // A prompt counts once, however many choices it has.
  void add(const GenerationEnd& end, bool counts_prompt);
  void write(JsonWriter& w) const;

 private:
  int64_t prompt_ = 0, cached_ = 0, completion_ = 0, reasoning_ = 0;
};

}  // namespace peregrine
