// Byte-pair merges (spec: tokenizer.md section 6).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace peregrine {

// The ranked pairs, and merging one piece with them. Reading is thread-safe.
class PairMerges {
 public:
  // Room for `count` pairs.
  explicit PairMerges(size_t count = 0);

  // `rank` orders the merges, lowest first. False when the pair is known already.
  bool add(int32_t left, int32_t right, int32_t rank, int32_t result);

  struct Merge {
    int32_t rank = -1;  // -1: the pair does not merge
    int32_t result = -1;
  };
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
};

// Applies merges to pieces one after another, keeping its buffers. One thread at a time.
class BpeMerger {
 public:
  // `byte_ids`: the token of every single byte.
  BpeMerger(const PairMerges& merges, const std::array<int32_t, 256>& byte_ids)
      : merges_(merges), byte_ids_(byte_ids) {}

  // Appends the tokens of `piece`: the adjacent pair of lowest rank merges first, of equal ranks
  // the leftmost. O(n log n) in the bytes of the piece.
  void merge(std::string_view piece, std::vector<int32_t>& ids);

 private:
  struct Symbol {
    int32_t id;        // -1: swallowed by its left neighbour
    int32_t previous;  // -1: none
    int32_t next;      // -1: none
  };
  struct Candidate {
    int32_t rank;
    int32_t position;  // of the left symbol
    int32_t left, right, result;
  };
  void offer(int32_t position);

  const PairMerges& merges_;
  const std::array<int32_t, 256>& byte_ids_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace peregrine
