// Operations whose kernels are not there yet.
#include "backend/cuda/attention.h"
#include "backend/cuda/compressor.h"
#include "backend/cuda/elementwise.h"
#include "backend/cuda/engram.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/hyper_connections.h"
#include "backend/cuda/indexer.h"
#include "backend/cuda/linear.h"
#include "backend/cuda/norm.h"
#include "backend/cuda/rope.h"
#include "backend/cuda/window.h"
#include "base/fail.h"

namespace peregrine::cuda {

#define PEREGRINE_MISSING(name, ...)                          \
  void name(const Launch&, __VA_ARGS__) {                     \
    fail(ErrorKind::kInternal, "CUDA: " #name " is missing"); \
  }

PEREGRINE_MISSING(embed, const Weight&, const int32_t*, int, Tensor)
PEREGRINE_MISSING(gather_rows, Tensor, const int32_t*, Tensor)
PEREGRINE_MISSING(add, Tensor, Tensor)
PEREGRINE_MISSING(engram_gather, const EngramTable&, const int64_t*, int, Tensor)
PEREGRINE_MISSING(engram_mix, const EngramMixArgs&)
PEREGRINE_MISSING(hc_mixes, Tensor, const HcWeights&, HcMix)
PEREGRINE_MISSING(hc_collapse_norm, Tensor, Tensor, const float*, Tensor)
PEREGRINE_MISSING(hc_collapse, Tensor, Tensor, Tensor)
PEREGRINE_MISSING(hc_expand, Tensor, Tensor, Tensor, Tensor)
PEREGRINE_MISSING(hc_tap, Tensor, int64_t, Tensor)
PEREGRINE_MISSING(rms_norm, Tensor, const float*, Tensor)
PEREGRINE_MISSING(rope, Tensor, int, const StepRows&, const RopeParams&)
PEREGRINE_MISSING(pack_window, Tensor, Tensor)
PEREGRINE_MISSING(store_window, Tensor, const StepRows&, int, const KvView&)
PEREGRINE_MISSING(compress_pairs, Tensor, Tensor, const StepRows&, int, const KvView&, Tensor)
PEREGRINE_MISSING(store_compressed, Tensor, const StepRows&, int, int, const KvView&)
PEREGRINE_MISSING(store_index_keys, Tensor, const StepRows&, int, int, const KvView&)
PEREGRINE_MISSING(index_select, const IndexArgs&, const StepRows&, const KvView&)
PEREGRINE_MISSING(sparse_attention, const AttentionArgs&, const StepRows&, const KvView&)

}  // namespace peregrine::cuda
