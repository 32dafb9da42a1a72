// Errors about shapes that a kernel does not take, for .cu files: the compiler of kernels cannot
// read the formatting library behind fail().
#pragma once

#include <cstdint>

namespace peregrine::cuda {

// Throws Error(kInvalidArgument) "CUDA: <what> is <found>, but the kernels take <taken>".
[[noreturn]] void refuse(const char* what, int64_t found, const char* taken);

}  // namespace peregrine::cuda
