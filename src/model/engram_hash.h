// Rows of the Engram tables for a position: the n-gram hash (spec: engram.md sections 1, 3, 4).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/config.h"
#include "model/tensor_split.h"

namespace peregrine {

// Draws of NumPy's default generator: PCG64 seeded through its SeedSequence, and bounded integers
// by Lemire's method. The multipliers of a table are drawn from it.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint64_t seed);
  uint64_t next();
  uint64_t below(uint64_t bound);  // uniform in [0, bound)

 private:
  unsigned __int128 state_ = 0;
  unsigned __int128 increment_ = 0;
};

// `count` odd multipliers of the table at `layer`.
std::vector<int64_t> engram_multipliers(int layer, int64_t compressed_vocab_size, int count);

class EngramHasher {
 public:
  // `token_map` has config.vocab_size compressed ids; its number of distinct ids must be
  // config.engram_compressed_vocab_size, else Error(kBadCheckpoint): a different map means a
  // different hash for everything.
  EngramHasher(const ModelConfig& config, std::vector<int32_t> token_map);

  int tables() const { return static_cast<int>(tables_.size()); }
  int columns() const { return columns_; }  // rows looked up per token and table

  // From now on only these columns, with row numbers counted from the first row of the first: the
  // part of the tables that one of several ranks holds.
  void keep(const Slice& columns);

  // Row numbers of position `pos` into out[columns()]. `tokens` are raw ids of positions 0 .. pos;
  // `image` has a flag a position, or is empty: positions inside image spans take part in no
  // n-gram.
  void rows(int table, std::span<const int32_t> tokens, std::span<const uint8_t> image, int64_t pos,
            int64_t* out) const;

  std::span<const int64_t> primes(int table) const {
    return tables_[static_cast<size_t>(table)].primes;
  }
  std::span<const int64_t> offsets(int table) const {
    return tables_[static_cast<size_t>(table)].offsets;
  }

 private:
  struct Table {
    std::vector<int64_t> primes;       // [columns]
    std::vector<int64_t> offsets;      // [columns]
    std::vector<int64_t> multipliers;  // [max n-gram]
  };
  int max_ngram_;
  int heads_;
  int columns_;
  int first_column_ = 0;
  int32_t pad_;
  std::vector<int32_t> token_map_;
  std::vector<Table> tables_;
};

}  // namespace peregrine
