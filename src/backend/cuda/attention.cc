#include "backend/cuda/attention.h"

#include "backend/cuda/attention_kernels.h"

namespace peregrine::cuda {

void sparse_attention(const Launch& launch, const AttentionArgs& args, const StepRows& step,
                      const KvView& kv) {
  if (step.rows == 0) return;
  if (!attend_with_tiles(launch, args, step, kv)) attend_plainly(launch, args, step, kv);
}

}  // namespace peregrine::cuda
