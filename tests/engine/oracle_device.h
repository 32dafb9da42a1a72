// A device that computes no model but checks every byte of state that a model would read.
//
// Each row it writes (window rings of an encoder and a decoder layer, global rows, unfinished
// halves) carries a hash of the tokens it stands for; before a row is processed, everything visible
// from it must carry the right hash. Tokens are a function of the prefix and the seed, so the
// oracle for a request is a loop. Drafts are right or wrong by a hash of the prefix.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cache/state_store.h"
#include "checkpoint/config.h"
#include "engine/device.h"

namespace peregrine::test {

constexpr int kOracleVocab = 64;
constexpr int32_t kOracleStop = 1;

// Rolling hash of a token prefix.
uint64_t extend_hash(uint64_t hash, int32_t token);
uint64_t hash_of(const std::vector<int32_t>& tokens, int64_t length);
int32_t oracle_token(uint64_t prefix_hash, uint64_t seed);

// A small shape: window 8, KV sources of ratio 2 and 1 at layers 1 and 2, three layers.
ModelConfig oracle_config();

class OracleDevice : public Device {
 public:
  OracleDevice(StateStore& state, double step_us);
  ~OracleDevice() override;

  // The first broken expectation, or empty.
  std::string problem() const;

 private:
  struct Slot {
    std::shared_ptr<const SequenceSetup> setup;
    std::vector<int32_t> tokens;
    int64_t length = 0;
    int32_t anchor = 0;
    std::vector<int32_t> drafts;
  };
  void run(StepState& state, const StepState* previous) override;
  void process(const RowGroup& group, const Slot& slot, int64_t start, int64_t end,
               const RowGroup* prefill);
  void decode(const RowGroup& group, StepOutput& output, GroupOutput& out);
  void draft(Slot& slot);
  void expect(bool condition, const char* what, const RowGroup& group, int64_t pos, int64_t at);

  StateStore& state_;
  double step_us_;
  std::vector<Slot> slots_;
  mutable std::mutex mutex_;
  std::string problem_;
};

}  // namespace peregrine::test
