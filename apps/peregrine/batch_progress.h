// What a batch says about itself on standard error while it runs, and its closing line.
#pragma once

#include <chrono>
#include <string>

#include "output.h"
#include "peregrine/engine.h"
#include "server/batch_runner.h"

namespace peregrine {

class BatchReport {
 public:
  // `total`: lines of the input, 0 when nobody knows; `resumed`: of these done by earlier runs.
  BatchReport(int64_t total, int64_t resumed) : total_(total), resumed_(resumed) {}

  // On a terminal one line that is redrawn, elsewhere a line every ten seconds.
  void show(const BatchProgress& progress, const Engine& engine);
  void finish(const BatchProgress& progress, const Engine& engine);

 private:
  using Clock = std::chrono::steady_clock;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }
  std::string text(const BatchProgress& progress, const EngineStats& stats) const;

  const int64_t total_, resumed_;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point shown_ = began_;
  ProgressLine line_;
};

}  // namespace peregrine
