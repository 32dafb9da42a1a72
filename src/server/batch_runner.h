// Runs a batch file: requests in, results out, never more than a window of them in memory.
//
// Owns: the order of reading, starting and writing. One thread does all of it and waits for the
// engine's events; the engine computes beside it. Assumes: nothing else uses the engine. Refuses:
// single lines, each with a result that says why; the run goes on.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "server/batch_exchange.h"
#include "server/batch_input.h"
#include "server/batch_journal.h"
#include "server/batch_pool.h"
#include "server/fingerprint_set.h"
#include "server/http_router.h"
#include "server/service.h"

namespace peregrine {

struct BatchOptions {
  bool input_order = true;  // of the results; false: as completed
  BatchSchedule schedule = BatchSchedule::kArrival;
  double grace_seconds = 30;  // that running requests get to end when the run is stopped
  // Of several runs that share an input, this one answers the lines whose number leaves
  // `share_rank` when divided by `shares`.
  int share_rank = 0, shares = 1;
};

// So far, without what earlier runs did.
struct BatchProgress {
  int64_t done = 0;     // results written
  int64_t failed = 0;   // of these
  int64_t running = 0;  // requests in the engine
  bool draining = false;
  bool complete = false;  // every line of the input has its result
};

enum class BatchCommand {
  kRun,
  kDrain,   // start nothing new, let running requests end
  kCancel,  // end them now; they run again next time
};

class BatchRunner {
 public:
  BatchRunner(Service& service, BatchInput& input, BatchJournal& journal,
              const BatchOptions& options);
  ~BatchRunner();

  // Until the end of the input, or until drained or cancelled. `tick` is called several times a
  // second. Throws Error when the input or the journal fails, or when the engine answers nothing
  // but errors of its own.
  BatchProgress run(const std::function<BatchCommand(const BatchProgress&)>& tick);

 private:
  bool has_room() const;
  bool read_lines();
  void take_line(BatchInputLine line);
  void start_requests();
  void start(BatchJob job);
  void on_response(int64_t line, const BatchLine& request, HttpResponse response);
  void finish(int64_t line, std::string result, bool failed);
  void write_results();
  void obey(BatchCommand command);
  void wait(bool more_to_read) const;

  Service& service_;
  BatchInput& input_;
  BatchJournal& journal_;
  const BatchOptions options_;
  const size_t start_limit_, pool_limit_, window_;  // requests
  HttpRouter router_;
  const std::shared_ptr<BatchWork> work_;

  FingerprintSet custom_ids_;
  BatchPool pool_;

  struct Result {
    std::string text;
    bool failed = false;
  };
  std::set<int64_t> open_;           // lines read that have no result
  std::map<int64_t, Result> ready_;  // results by line, not yet written
  size_t pending_bytes_ = 0;         // of the pool's bodies and of ready results

  BatchProgress progress_;
  int server_errors_in_a_row_ = 0;
  bool cancelled_ = false;
  std::chrono::steady_clock::time_point drain_end_;
};

}  // namespace peregrine
