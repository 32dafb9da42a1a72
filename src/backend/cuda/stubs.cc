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

PEREGRINE_MISSING(index_select, const IndexArgs&, const StepRows&, const KvView&)

}  // namespace peregrine::cuda
