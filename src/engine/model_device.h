// Runs steps on a model: fix-up from the step before, forward pass, sampling or verification, and
// the drafts of the next step. Nothing of a running step is read back by the host.
//
// Per slot it keeps what only the device may know while results are in flight: the tokens
// processed, the anchor (sampled, not yet processed) and the drafts behind it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/state_store.h"
#include "engine/device.h"
#include "engine/model_impl.h"
#include "engine/sequence_sampler.h"
#include "model/drafter.h"
#include "model/forward.h"
#include "sampling/draft_choice.h"

namespace peregrine {

struct ModelDeviceOptions {
  int max_rows = 0;  // of a step
  bool drafts = false;
};

class ModelDevice : public Device {
 public:
  ModelDevice(std::shared_ptr<const Model> model, StateStore& state,
              const ModelDeviceOptions& options);
  ~ModelDevice() override;

 protected:
  void run(StepState& state, const StepState* previous) override;

 private:
  struct Sequence {
    std::shared_ptr<const SequenceSetup> setup;
    SequenceSampler sampler;
    std::vector<int32_t> tokens;  // positions 0 .. length - 1 are processed
    int64_t length = 0;
    int32_t anchor = 0;
    Drafts drafts;
    DraftChoice choice;  // kAuto

    int64_t emitted() const {  // the anchor included
      return length + 1 - setup->prompt_length;
    }
  };

  void begin_stay(const RowGroup& group);
  void choose_drafts(const StepPlan& plan);
  void build_step(const StepPlan& plan);
  void decide(const StepPlan& plan, StepOutput& output);
  void draft_next(const StepPlan& plan, StepOutput& output);
  int drafts_wanted(const Sequence& sequence) const;
  void learn(const StepPlan& plan, const StepOutput& output, double step_us);
  // The step as one of its decoding sequences sees it, the others being average.
  struct Share {
    double rows = 1;           // of the step if it verified no draft of this one
    double tokens_per_us = 0;  // that the step would then make
    double pass_us = 0;        // this one's part of the drafter pass
  };
  Share share() const;
  DraftPrices prices(int drafts) const;
  DraftLedger& ledger() const { return model_->impl().draft_ledger; }
  Sequence& at(int slot) { return *sequences_[static_cast<size_t>(slot)]; }
  std::span<const float> host_rows(Tensor rows, std::vector<float>& buffer);

  std::shared_ptr<const Model> model_;
  StateStore& state_;
  Backend& backend_;
  std::vector<int32_t> masked_;
  Forward forward_;
  std::optional<Drafter> drafter_;
  LogitProcessor processor_;
  std::vector<std::optional<Sequence>> sequences_;  // [slot]
  // Of the last step: its decoding sequences, their rows and tokens, and how many had drafts.
  int decoding_ = 0, decode_rows_ = 0, decode_tokens_ = 0, drafting_ = 0;

  // Scratch of a step.
  Step step_;
  std::vector<SegmentRows> where_;
  std::vector<float> logits_buffer_, draft_buffer_, score_buffer_;
  std::vector<DraftSegment> draft_segments_;
  std::vector<int> draft_groups_;
};

}  // namespace peregrine
