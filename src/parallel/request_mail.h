// Requests, events and what else the ranks of a server tell each other, as bytes that ride on
// votes.
//
// Ranks vote every round anyway, so what they have to say waits for the next vote: no thread and no
// channel of its own, and everything is handed on by the engine's thread. A vote carries at most
// kMostMailBytes to each rank; longer mail goes on in the next one. Ranks run the same program, so
// values travel as they lie in memory; lengths are checked.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel/communicator.h"
#include "peregrine/engine.h"

namespace peregrine {

inline constexpr size_t kMostMailBytes = size_t{1} << 20;

// Bytes that a vote carries beside the vote itself.
class VoteMail {
 public:
  virtual ~VoteMail() = default;
  virtual void pack(int peer, Bytes& message) = 0;  // appends
  virtual void unpack(int peer, std::span<const std::byte> bytes) = 0;
};

enum class MailKind : uint8_t { kSubmit, kCancel, kStop, kEvent, kStats };

struct MailRecord {
  MailKind kind = MailKind::kStop;
  uint64_t id = 0;  // of the request, given by rank 0
  Bytes body;
};

// The records between this rank and another one, cut to votes and put together again.
class MailStream {
 public:
  void put(const MailRecord& record);
  void pack(Bytes& message);
  void unpack(std::span<const std::byte> bytes);
  std::optional<MailRecord> next();  // that has arrived completely

 private:
  Bytes out_, in_;
  size_t out_begin_ = 0, in_begin_ = 0;
};

// What an event says, kept beyond its callback.
struct MailEvent {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  bool finished = false;
  EndReason reason = EndReason::kStop;
  std::string error;
  Usage usage;
};

// A request without what cannot leave its process: accept, state, on_state and a constraint.
Bytes write_request(const Request& request);
Request read_request(std::span<const std::byte> bytes);  // throws Error(kInternal)
Bytes write_event(const Event& event);
MailEvent read_event(std::span<const std::byte> bytes);
Bytes write_stats(const EngineStats& stats);
EngineStats read_stats(std::span<const std::byte> bytes);

}  // namespace peregrine
