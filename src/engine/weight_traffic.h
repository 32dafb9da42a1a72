// Counts the weight bytes that model steps read, to state speed as a share of the memory bandwidth
// (design: bytes decide).
//
// A step reads every dense weight once and every expert that at least one of its rows chose once;
// of the embedding and the Engram tables it reads single rows. Draft passes are not counted.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/config.h"
#include "model/forward.h"

namespace peregrine {

class WeightTraffic {
 public:
  WeightTraffic(const ModelConfig& config, Backend& backend);

  // Counts the steps of `forward` from now on; both must stay where they are.
  void watch(Forward& forward);

  void reset() { bytes_ = 0; }
  uint64_t bytes() const { return bytes_; }

 private:
  void count(int layer, Tensor expert_ids);

  Backend& backend_;
  uint64_t dense_bytes_;   // of a step
  uint64_t expert_bytes_;  // of one expert of one layer
  int last_layer_;
  std::vector<int32_t> ids_;
  std::vector<bool> chosen_;
  uint64_t bytes_ = 0;
};

}  // namespace peregrine
