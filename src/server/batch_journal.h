// The output file of a batch, which is also the journal of what has been done.
//
// Owns: the file, locked against a second run. A result is appended by one write, so a run that is
// killed at any moment leaves complete results and at most one torn last line, which the next run
// cuts off; its request runs again. A write that comes kSyncSeconds or more after the last
// fdatasync ends in one: after a power cut what was written since may be missing, and runs again.
// Refuses: a file with anything but results in it, which it never changes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace peregrine {

inline constexpr double kSyncSeconds = 1;

class BatchJournal {
 public:
  // "-" is standard output; what is no regular file has no past. Throws Error(kIo) and
  // Error(kInvalidArgument). `input` may not be the same file.
  BatchJournal(const std::string& path, const std::string& input, bool overwrite);
  ~BatchJournal();
  BatchJournal(const BatchJournal&) = delete;
  BatchJournal& operator=(const BatchJournal&) = delete;

  // Whether line `number` of the input has its result from an earlier run; asked in the order of
  // the lines. Throws Error(kInvalidArgument) when that was the result of another request: the
  // input has changed.
  bool done(int64_t number, const std::optional<std::string>& custom_id);
  int64_t resumed() const { return resumed_; }                    // results that were there
  int64_t resumed_failures() const { return resumed_failures_; }  // of these

  // Whole lines. Throws Error(kIo) naming the reason; what was written before stays.
  void append(std::string_view results);
  void sync();

 private:
  void open_file(const std::string& input, bool overwrite);
  void read_past();
  void remember(std::string_view line, int64_t result_number);

  struct Past {
    int64_t line = 0;
    uint64_t request = 0;  // which one it was: a hash of its custom_id
  };

  const std::string path_;
  int fd_ = -1;
  bool regular_ = false;
  std::vector<Past> past_;  // by line
  size_t next_past_ = 0;
  int64_t resumed_ = 0, resumed_failures_ = 0;
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace peregrine
