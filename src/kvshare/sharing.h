// Any server can take the next turn of any conversation: finds the state to continue from before a
// request enters the engine, and announces the new one after its end (spec: kv-sharing.md).
//
// Owns: the choice between what the engine has cached, this server's vault, a fetch from the owner
// and computing the prompt; the threads on which requests are prepared; claims. Versions decide who
// announces a state, token ids decide whether it is used, so that no answer of the directory can
// lead to a wrong state. Every failure ends in computing the prompt and a count.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kvshare/directory.h"
#include "kvshare/state_vault.h"
#include "kvshare/transfer.h"
#include "peregrine/engine.h"

namespace peregrine {

// What asking another server gave.
struct FetchedState {
  PinnedImage image;    // null: nothing
  std::string failure;  // one word when there is nothing: "deadline", "damaged", ...
  std::string message;  // and one sentence
  uint64_t bytes = 0;   // moved
  double seconds = 0;
  // The owner is not to be asked again soon, whatever the conversation.
  bool owner_fault = false;
};

// Where a request's state came from.
enum class StateSource { kNone, kEngine, kVault, kRemote };
const char* source_name(StateSource source);

struct SharingOptions {
  // Reads what a prefix of the tokens needs, at least `min_tokens`, within a deadline of its own.
  // Empty: this server asks nobody.
  std::function<FetchedState(const std::string& address, const std::string& key,
                             std::span<const int32_t> tokens, int64_t min_tokens)>
      fetch;
  // Where others fetch from this server, "host:port"; empty: nowhere.
  std::string address;
  int max_prepared = 6;    // requests being prepared, and requests that wait with a state in memory
  int max_waiting = 1024;  // for a thread that prepares them
  // That an owner which did not answer is left alone; doubles up to 30 times as long.
  std::chrono::milliseconds owner_pause{1000};
  // What the two sides of transfer do now, for stats(); may be empty.
  std::function<TransferServerStats()> serving;
  std::function<uint64_t()> fetch_memory;
};

struct SharingStats {
  std::array<int64_t, 4> requests{};  // by StateSource
  int64_t requests_from(StateSource source) const { return requests[static_cast<size_t>(source)]; }
  int64_t recompute_chosen = 0;  // a fetch would have taken longer
  uint64_t fetched_bytes = 0;
  double fetch_seconds = 0;
  int64_t claims = 0, stale = 0, unpublished = 0;  // ended turns; the last: directory away
  int64_t reclaimed = 0;
  int64_t directory_failures = 0;  // operations without an answer
  int64_t damaged_in_memory = 0;   // states dropped for it
  bool directory_available = false;
  std::map<std::string, int64_t> fetch_failures;  // by FetchedState::failure
  int64_t prepared = 0;                           // states that wait for their request's turn
  uint64_t fetch_memory_bytes = 0;                // of states fetched or being fetched
  TransferServerStats serving;
  VaultStats vault;
};

class Sharing {
 public:
  // Makes the directory with this name of the server in records and these callbacks.
  using MakeDirectory = std::function<std::unique_ptr<Directory>(std::string, DirectoryNotices)>;

  // The vault must outlive this, and this the engine (which hands states over while it ends).
  Sharing(Engine& engine, StateVault& vault, const MakeDirectory& make_directory,
          SharingOptions options);
  ~Sharing();

  // Runs work that prepares and submits a request on one of the preparing threads. False: too many
  // wait, or finish() was called.
  bool run(std::function<void()> work);
  // Waits until all work has run; none is taken from here on.
  void finish();

  // The token ids of the newest state that can be had for the conversation, for rendering its
  // earlier turns as they were sampled; `prompt`: the ids known so far. May fetch.
  std::vector<int32_t> known_tokens(const std::string& key, std::span<const int32_t> prompt);
  // Gives the request the state to continue from, and announces its own when it has ended. Blocks
  // for as long as the directory and a fetch may take. request.on_state is let go of once the
  // state is announced, or when it is known that there will be none.
  StateSource prepare(const std::string& key, Request& request);

  SharingStats stats() const;

 private:
  struct Fetched {
    std::string key;
    DirectoryVersion version;
    PinnedImage image;
  };
  struct Found {
    PinnedImage image;
    bool remote = false;
  };

  std::optional<DirectoryRecord> look_up(const std::string& key);
  Found find(const std::string& key, const std::optional<DirectoryRecord>& record,
             std::span<const int32_t> prompt, int64_t cached);
  PinnedImage fetch(const std::string& key, const DirectoryRecord& record,
                    std::span<const int32_t> prompt, int64_t min_tokens);
  bool worth_fetching(int64_t tokens, int64_t cached) const;
  bool is_paused(const std::string& address) const;
  void judge_owner(const std::string& address, bool fault);
  bool is_intact(const std::string& key, const StateImage& image, int64_t prefix);
  std::shared_ptr<const SavedState> hold(SavedState state);
  void publish(const std::string& key, std::optional<DirectoryVersion> seen,
               const SavedState& state);
  bool reclaim(const std::string& key);
  void prepare_loop();
  void keep_claims();

  Engine& engine_;
  StateVault& vault_;
  const SharingOptions options_;
  const StateShape shape_;

  mutable std::mutex mutex_;
  std::condition_variable work_, idle_, held_changed_, keeper_;
  std::deque<std::function<void()>> queue_;
  int working_ = 0;
  int held_ = 0;  // states that wait for their request's turn
  bool closed_ = false, stopping_ = false;
  bool reclaim_all_ = true;            // at the start: what files were found; later: a new epoch
  std::list<Fetched> recent_fetches_;  // newest first; between known_tokens() and prepare()
  double link_bytes_per_second_ = 0;   // measured; 0: not yet
  struct Pause {
    std::chrono::steady_clock::time_point until;
    std::chrono::milliseconds length{};
  };
  std::map<std::string, Pause> pauses_;  // of owners, by address
  SharingStats stats_;

  std::unique_ptr<Directory> directory_;
  std::vector<std::thread> threads_;
};

}  // namespace peregrine
