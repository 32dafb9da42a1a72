// What states of an engine look like, and what decides whether another engine may use them.
#pragma once

#include "cache/state_store.h"
#include "engine/model_impl.h"
#include "engine/saved_state.h"
#include "peregrine/engine.h"

namespace peregrine {

// `options`: with defaults filled in.
StateShape state_shape_of(const Model::Impl& model, const StateStore& state,
                          const EngineOptions& options);

}  // namespace peregrine
