// Copies the states of ended requests out of the engine while it goes on with others.
//
// The engine's thread hands over a state: its recent part is copied already, its rows are pages on
// which the saver holds references. Rows below the state's length never change while a reference is
// held (whoever writes behind them copies the page first), so a thread of the saver's own copies
// them beside running steps. What waits is bounded: beyond it states are not saved.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "cache/state_store.h"
#include "engine/saved_state.h"

namespace peregrine {

class StateSaver {
 public:
  using Receiver = std::function<void(std::shared_ptr<const SavedState>)>;

  StateSaver(StateStore& state, const StateShape& shape);
  ~StateSaver();  // saves what waits, then releases it

  // The next three for the engine's thread only. All steps that wrote rows of the slot below
  // `tokens` have run; `recent` may be empty.
  void save(int slot, std::vector<int32_t> tokens, bool exact, std::vector<std::byte> recent,
            Receiver receiver);
  // Lets go of pages whose copies are done. True while some are not.
  bool release_done();
  void count_references(std::span<int32_t> counts) const;  // for the integrity check

 private:
  struct Job {
    std::vector<int32_t> tokens;
    bool exact = true;
    std::vector<std::byte> recent;
    std::vector<std::vector<int32_t>> pages;  // by source
    Receiver receiver;
    bool copied = false;  // guarded by mutex_
  };

  void run();
  std::shared_ptr<const SavedState> copy(Job& job) const;
  void release(const Job& job);

  StateStore& state_;
  const StateShape& shape_;
  std::vector<std::shared_ptr<Job>> held_;  // engine's thread: jobs with references

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::shared_ptr<Job>> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace peregrine
