# UCX moves saved states between servers (src/kvshare/ucx). Used where it is found; a build without
# it works, and says so when a server is asked to share.
set(PEREGRINE_WITH_UCX AUTO CACHE STRING "Build state transfer over UCX: AUTO, ON or OFF")
set_property(CACHE PEREGRINE_WITH_UCX PROPERTY STRINGS AUTO ON OFF)

set(PEREGRINE_UCX OFF)
# Its hooks on memory calls run before ThreadSanitizer knows a new thread, which ends the program.
if(NOT PEREGRINE_WITH_UCX STREQUAL "OFF" AND NOT PEREGRINE_SANITIZE STREQUAL "thread")
  pkg_check_modules(UCX IMPORTED_TARGET ucx>=1.13)
  if(UCX_FOUND)
    set(PEREGRINE_UCX ON)
    target_link_libraries(peregrine_dependencies INTERFACE PkgConfig::UCX)
  elseif(PEREGRINE_WITH_UCX STREQUAL "ON")
    message(FATAL_ERROR "PEREGRINE_WITH_UCX=ON, but UCX 1.13 (libucx-dev) was not found")
  endif()
endif()
message(STATUS "UCX: ${PEREGRINE_UCX}")
