#include "backend/cuda/refuse.h"

#include "base/fail.h"

namespace peregrine::cuda {

void refuse(const char* what, int64_t found, const char* taken) {
  fail(ErrorKind::kInvalidArgument, "CUDA: {} is {}, but the kernels take {}", what, found, taken);
}

}  // namespace peregrine::cuda
