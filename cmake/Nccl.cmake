# Collectives between GPUs over NCCL (src/parallel/nccl_*), built where CMake finds it beside the
# CUDA backend and left out where it does not. Only programs that use them need its library.
option(PEREGRINE_WITH_NCCL "Build collectives between GPUs where NCCL is found" ON)
set(PEREGRINE_NCCL OFF)
if(PEREGRINE_WITH_NCCL AND PEREGRINE_CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}
               PATH_SUFFIXES lib lib64)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(PEREGRINE_NCCL ON)
    add_library(peregrine_nccl INTERFACE)
    target_link_libraries(peregrine_nccl INTERFACE ${NCCL_LIBRARY})
  endif()
endif()
message(STATUS "NCCL: ${PEREGRINE_NCCL}")
