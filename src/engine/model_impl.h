// The inside of peregrine::Model.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"
#include "model/engram_hash.h"
#include "model/weights.h"
#include "peregrine/model.h"
#include "sampling/draft_choice.h"
#include "text/tokenizer.h"

namespace peregrine {

struct Model::Impl {
  Impl(Checkpoint opened, Tokenizer loaded, const LoadOptions& options, ExpertExchange* exchange,
       TensorGroup* tensors);

  // As Model::load. With `exchange` or `tensors`, of which at most one is given and which must
  // outlive the model, only what this rank holds is read and mapped.
  static std::shared_ptr<const Model> load(const std::string& path, const LoadOptions& options,
                                           ExpertExchange* exchange,
                                           TensorGroup* tensors = nullptr);

  Checkpoint checkpoint;
  Tokenizer tokenizer;
  std::unique_ptr<Backend> backend;
  // Held for every step: sessions and an engine of one model share the backend's scratch memory.
  mutable std::mutex device_mutex;
  mutable DraftLedger draft_ledger;  // with device_mutex
  Weights weights;
  std::optional<EngramHasher> hasher;
  uint64_t fingerprint =
      0;  // of the shape and the identity of the weights: states move only between equals
  std::string identity;  // of config and tokenizer: SHA-256 of their files

  const ModelConfig& config() const { return checkpoint.config; }
  const EngramHasher* engram_hasher() const { return hasher ? &*hasher : nullptr; }
};

}  // namespace peregrine
