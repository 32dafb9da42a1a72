// Moving bytes between two processes with UCX and nothing else: what bench transfer is compared
// with. One side exposes memory, the other reads it with one-sided gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace peregrine {

// A context and worker with remote memory access, over "tcp" or "shm".
class RawUcx {
 public:
  explicit RawUcx(const std::string& transports);
  ~RawUcx();
  RawUcx(const RawUcx&) = delete;
  RawUcx& operator=(const RawUcx&) = delete;

  // What the reader needs to read `bytes`, which stay.
  std::vector<std::byte> expose(std::span<const std::byte> bytes);
  void progress();  // and waits up to a millisecond when there is none to make

  // Reads all that was exposed, `piece_bytes` a get, a few under way.
  void connect(std::span<const std::byte> exposed);
  void get(std::span<std::byte> out, size_t piece_bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace peregrine
