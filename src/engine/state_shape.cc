#include "engine/state_shape.h"

#include <fmt/format.h>
#include <openssl/sha.h>

namespace peregrine {

StateShape state_shape_of(const Model::Impl& model, const StateStore& state,
                          const EngineOptions& options) {
  const ModelConfig& config = model.config();
  StateShape shape{.compatibility = {},
                   .vocab_size = config.vocab_size,
                   .context_tokens = options.context_tokens,
                   .recent_bytes = state.recent_bytes(),
                   .sources = {}};
  for (const int layer : config.kv_source_layers)
    shape.sources.push_back({.ratio = config.ratio(layer),
                             .main_row_bytes = state.view().main_row_bytes,
                             .index_row_bytes = state.view().index_row_bytes});
  // The version stands for the kernels' code: what a release changes in them changes bits.
  shape.compatibility = fmt::format(
      "program={}\nweights={:016x}\nconfig_and_tokenizer={}\ncontext={}\ntensor_parallel=1\n"
      "kernels={}\nprefill={}\n",
      PEREGRINE_VERSION, model.fingerprint, model.identity, options.context_tokens,
      model.backend->kernels_name(), options.prefill == PrefillMode::kExact ? "exact" : "replay");
  SHA256(reinterpret_cast<const unsigned char*>(shape.compatibility.data()),
         shape.compatibility.size(), reinterpret_cast<unsigned char*>(shape.fingerprint.data()));
  return shape;
}

}  // namespace peregrine
