# The CUDA backend, built where a CUDA compiler is found and left out where none is. Sanitizer
# builds leave it out: they check host code, and the device's own checker runs on the GPU.
set(PEREGRINE_CUDA_ARCHITECTURES "90a" CACHE STRING
    "Targets of the CUDA kernels; 90a is verified, 100a and 103a compile")
option(PEREGRINE_WITH_CUDA "Build the CUDA backend where a CUDA compiler is found" ON)
set(PEREGRINE_CUDA OFF)
if(PEREGRINE_WITH_CUDA AND NOT PEREGRINE_SANITIZE AND NOT PEREGRINE_FUZZERS)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(PEREGRINE_NVCC nvcc HINTS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
    if(PEREGRINE_NVCC)
      set(CMAKE_CUDA_COMPILER ${PEREGRINE_NVCC})
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${PEREGRINE_CUDA_ARCHITECTURES})
    if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
    endif()
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know the flag
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(PEREGRINE_CUDA ON)
    target_link_libraries(peregrine_dependencies INTERFACE CUDA::cudart_static)
    # The one place of the library that asks whether the backend is there.
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/backend/make_backend.cc
      PROPERTIES COMPILE_DEFINITIONS PEREGRINE_CUDA)
    # No contraction into fused operations, as on the host: kernels ask for them explicitly.
    target_compile_options(peregrine_settings INTERFACE
      $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false -Xcompiler=-Wall,-Wextra
        --Werror=all-warnings -diag-suppress=20012 --expt-relaxed-constexpr>)
  endif()
endif()
