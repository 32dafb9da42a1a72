// A device whose step takes a known time and computes nothing: it shows what the host costs
// (spec: scheduler.md, "Measured"). Every decode group emits one token.
#pragma once

#include "engine/device.h"

namespace peregrine {

struct SyntheticDeviceOptions {
  double step_us = 0;  // time of a step; 0: as fast as the queue allows
  int32_t token = 1;   // what every sequence emits
};

class SyntheticDevice : public Device {
 public:
  explicit SyntheticDevice(const SyntheticDeviceOptions& options);
  ~SyntheticDevice() override;

 private:
  void run(StepState& state, const StepState* previous) override;

  SyntheticDeviceOptions options_;
};

}  // namespace peregrine
