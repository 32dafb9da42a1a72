// A Chrome trace (chrome://tracing, Perfetto) of the engine: what host and device did when.
#pragma once

#include <string>
#include <vector>

namespace peregrine {

class Trace {
 public:
  enum class Lane { kHost = 1, kDevice = 2 };

  explicit Trace(std::string path) : path_(std::move(path)) {}
  ~Trace() { write(); }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // `name` is a string literal; times in microseconds on the steady clock.
  void add(Lane lane, const char* name, double begin_us, double end_us, long long step, int rows);

 private:
  struct Span {
    Lane lane;
    const char* name;
    double begin_us, end_us;
    long long step;
    int rows;
  };
  void write();

  std::string path_;
  std::vector<Span> spans_;
};

}  // namespace peregrine
