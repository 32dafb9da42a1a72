// The inside of peregrine::Session: one slot of a state store, driven by a Forward.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cache/state_store.h"
#include "engine/model_impl.h"
#include "model/drafter.h"
#include "model/forward.h"
#include "peregrine/session.h"

namespace peregrine {

struct Session::Impl {
  Impl(std::shared_ptr<const Model> shared, const SessionOptions& wanted);

  std::shared_ptr<const Model> model;
  SessionOptions options;  // defaults filled in
  StateStore state;
  Forward forward;
  std::optional<Drafter> drafter;
  int slot;

  std::vector<int32_t> tokens;
  int64_t high_water = 0;  // longest length since the rings were last consistent from scratch
  int64_t rollback_floor = 0;
  // Window keys below these positions do not exist for the decoder layers (replay prefill).
  int64_t decoder_floor = 0;
  std::vector<float> logits;  // of the rows of the last step; its last row is the last position's
  bool logits_valid = false;

  const ModelConfig& config() const { return model->impl().config(); }
  Backend& backend() const { return *model->impl().backend; }
  int vocab() const { return config().vocab_size; }

  void check_tokens(std::span<const int32_t> ids, size_t base) const;
  void reset();
  void truncate(int64_t length);
  // Runs positions begin .. end - 1 of `tokens`.
  struct Run {
    int64_t begin = 0, end = 0;
    int64_t decoder_start = 0;  // see Segment
    int logits = 0;
  };
  void run(const Run& what);
  void grow_to(int64_t length);  // bookkeeping after positions below `length` exist
};

}  // namespace peregrine
