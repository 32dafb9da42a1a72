# BLAKE3 as a small static library from the official C sources, which Debian ships inside
# librust-blake3-dev. The x86-64 variants are assembly and chosen at run time; ARM64 has NEON.
file(GLOB BLAKE3_FOLDERS /usr/share/cargo/registry/blake3-*/c)
find_path(BLAKE3_SOURCE_DIR blake3_dispatch.c PATHS ${BLAKE3_FOLDERS} NO_DEFAULT_PATH REQUIRED
          DOC "Folder of the C sources of BLAKE3 (Debian package librust-blake3-dev)")

set(BLAKE3_SOURCES blake3.c blake3_dispatch.c blake3_portable.c)
set(BLAKE3_DEFINITIONS)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  enable_language(ASM)
  foreach(variant sse2 sse41 avx2 avx512)
    list(APPEND BLAKE3_SOURCES blake3_${variant}_x86-64_unix.S)
  endforeach()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  list(APPEND BLAKE3_SOURCES blake3_neon.c)
  set(BLAKE3_DEFINITIONS BLAKE3_USE_NEON)
endif()
list(TRANSFORM BLAKE3_SOURCES PREPEND ${BLAKE3_SOURCE_DIR}/)

add_library(blake3 STATIC ${BLAKE3_SOURCES})
target_include_directories(blake3 SYSTEM PUBLIC ${BLAKE3_SOURCE_DIR})
target_compile_definitions(blake3 PRIVATE ${BLAKE3_DEFINITIONS})
