# Warnings, floating-point rules and sanitizers, shared by every target.
add_library(peregrine_settings INTERFACE)

# Contracting a*b+c into one rounding would make results depend on the compiler and the target of
# a translation unit. Kernels ask for fused operations explicitly where they want them.
target_compile_options(peregrine_settings INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-psabi -Wno-missing-field-initializers>)

if(PEREGRINE_SANITIZE STREQUAL "address")
  target_compile_options(peregrine_settings INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
    # GCC 12 warns of members of empty optionals once instrumentation splits their tests.
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_link_options(peregrine_settings INTERFACE -fsanitize=address,undefined)
elseif(PEREGRINE_SANITIZE STREQUAL "thread")
  target_compile_options(peregrine_settings INTERFACE -fsanitize=thread -fno-omit-frame-pointer
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan -Wno-maybe-uninitialized>)  # Asio fences are invisible to it
  target_link_options(peregrine_settings INTERFACE -fsanitize=thread)
endif()

# ccache and mold shorten rebuilds; neither changes what is built.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  target_link_options(peregrine_settings INTERFACE -fuse-ld=mold)
endif()
