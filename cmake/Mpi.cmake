# Ranks over MPI, built where CMake finds one and left out where it does not. Sanitizer builds leave
# it out as well: the code above the transport runs there over threads, and MPI itself leaks by design.
option(PEREGRINE_WITH_MPI "Build ranks over MPI where one is found" ON)
set(PEREGRINE_MPI OFF)
if(PEREGRINE_WITH_MPI AND NOT PEREGRINE_SANITIZE AND NOT PEREGRINE_FUZZERS)
  find_package(MPI COMPONENTS C QUIET)
  if(MPI_C_FOUND)
    set(PEREGRINE_MPI ON)
    target_link_libraries(peregrine_dependencies INTERFACE MPI::MPI_C)
    # The one place of the library that asks whether MPI is there.
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/parallel/rank_group.cc
      PROPERTIES COMPILE_DEFINITIONS PEREGRINE_MPI)
  else()
    message(STATUS "MPI not found: built for one rank")
  endif()
endif()
