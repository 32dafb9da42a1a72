// How many prompt rows run beside decoding sequences, chosen by what steps take.
//
// Owns running medians and nothing else: it is told the times and holds no clock. Medians, because
// single steps of a shared machine say little. One step in sixteen runs without prompt rows, so
// that the comparison follows the batch and the machine while a long prompt is read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace peregrine {

class PrefillPace {
 public:
  // How much slower decoding may get beside prompts, in the median, while no more sequences read
  // their prompts than decode; leaves the slowest steps room to stay within twice. With more of
  // them the allowance grows in proportion: each step then delays more first tokens than next ones.
  static constexpr double kSlowdown = 1.5;
  static constexpr int kProbeEvery = 16;  // steps

  explicit PrefillPace(int max_rows) : max_rows_(max_rows) {}

  // Prompt rows that step `number` may hold beside decode rows; 0 in one step of kProbeEvery.
  int rows(int64_t number) const { return number % kProbeEvery == 0 ? 0 : rows_; }

  // A step of `decoding` sequences (at least 1) and `prompt_rows` other rows took `us`
  // microseconds, while `reading` sequences with a place in the batch had not read their prompts.
  struct Measured {
    int prompt_rows = 0;
    double us = 0;
    int decoding = 1;
    int reading = 0;
  };
  void record(const Measured& step);

 private:
  // The last few numbers.
  class Recent {
   public:
    void add(double value) { values_[static_cast<size_t>(count_++) % values_.size()] = value; }
    void clear() { count_ = 0; }
    bool full() const { return count_ >= static_cast<int64_t>(values_.size()); }
    double median() const;  // of a full one

   private:
    std::array<double, 9> values_{};
    int64_t count_ = 0;
  };

  void choose(double cost_us, double slowdown);

  int max_rows_;
  int rows_ = 8;
  Recent alone_;          // steps without prompt rows
  Recent cost_;           // what a prompt row added to a step, since the last choice
  bool all_full_ = true;  // these steps held rows_ prompt rows
};

}  // namespace peregrine
