// Any bytes as a file of expert counts: taken, and then planned, or refused with a sentence.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "parallel/eplb.h"
#include "parallel/expert_counts.h"
#include "peregrine/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace peregrine;
  try {
    const ExpertCounts counts =
        parse_expert_counts({reinterpret_cast<const char*>(data), size}, "input");
    for (const auto& layer : counts) {
      const auto experts = static_cast<int>(layer.size());
      const ExpertPlacement placement =
          plan_experts(layer, {.replicas = 2 * experts, .ranks = experts});
      if (placement.expert_of_slot.size() != 2 * layer.size()) std::abort();
      for (const int32_t copies : placement.copies)
        if (copies < 1) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
