// Requests of a batch that have been read and not yet started, and which of them goes next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/batch_line.h"

namespace peregrine {

enum class BatchSchedule {
  kArrival,  // as the file has them
  kLongest,  // the most work first: no long answer runs alone at the end
  kPrefix,   // alphabetical by conversation: those that begin alike meet in the prefix cache
};

struct BatchJob {
  int64_t line = 0;
  BatchLine request;
};

class BatchPool {
 public:
  explicit BatchPool(BatchSchedule schedule) : schedule_(schedule) {}

  void add(BatchJob job) { jobs_.push_back(std::move(job)); }
  BatchJob take();  // not empty
  size_t size() const { return jobs_.size(); }
  bool empty() const { return jobs_.empty(); }

 private:
  // Whether `a` goes before `b`; equal ones as the file has them.
  bool before(const BatchJob& a, const BatchJob& b) const;

  const BatchSchedule schedule_;
  std::vector<BatchJob> jobs_;  // in no order; some hundreds
  std::string last_body_;       // kPrefix: goes on from here, and round again at the end
};

}  // namespace peregrine
