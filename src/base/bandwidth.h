// Read bandwidth of this machine, the limit that decode speed is stated against.
#pragma once

#include <cstddef>

namespace peregrine {

class ThreadPool;

// Bytes per second at which all threads of `pool` together read memory: the fastest of several
// passes over a buffer of `bytes` that is written first. The buffer should exceed the last cache
// several times; it is allocated and released here. Throws Error(kOutOfMemory).
double measure_read_bandwidth(ThreadPool& pool, size_t bytes);

}  // namespace peregrine
