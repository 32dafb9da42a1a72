// Counters and times for Prometheus (spec: api.md section 1).
#pragma once

#include <memory>
#include <string>

#include "peregrine/engine.h"
#include "server/request_log.h"

namespace peregrine {

// Thread-safe. The engine's own numbers are read when asked for.
class Metrics {
 public:
  explicit Metrics(const Engine& engine);
  ~Metrics();

  void request_ended(const RequestRecord& record);
  void loop_delay(double seconds);

  // The text exposition format; `connections`: open ones now.
  std::string text(int connections) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace peregrine
