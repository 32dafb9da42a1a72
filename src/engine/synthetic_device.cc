#include "engine/synthetic_device.h"

#include <chrono>
#include <thread>

namespace peregrine {

SyntheticDevice::SyntheticDevice(const SyntheticDeviceOptions& options) : options_(options) {
  start();
}

SyntheticDevice::~SyntheticDevice() { stop(); }

void SyntheticDevice::run(StepState& state, const StepState*) {
  const double end = now_us() + options_.step_us;
  StepOutput& output = state.output;
  output.groups.assign(state.plan.groups.size(), {});
  for (size_t g = 0; g < state.plan.groups.size(); ++g) {
    const RowGroup& group = state.plan.groups[g];
    output.groups[g].first_token = static_cast<int>(output.tokens.size());
    output.rows += group.kind == GroupKind::kPrefill ? group.count : 1;
    if (group.kind == GroupKind::kPrefill && (!group.last || (group.setup && group.setup->anchor)))
      continue;
    output.tokens.push_back(options_.token);
    output.groups[g].tokens = 1;
  }
  output.logprobs.resize(output.tokens.size());
  // A sleep leaves the core to the host, as an accelerator does; its wake-up is late by a fraction
  // of what is measured, so the last stretch is waited for awake.
  constexpr double kAwakeUs = 100;
  if (const double sleep_us = end - now_us() - kAwakeUs; sleep_us > 0)
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(sleep_us));
  while (now_us() < end) {
  }
}

}  // namespace peregrine
