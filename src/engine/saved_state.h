// The state of a sequence outside the engine that computed it, and the shape that it has.
//
// Owns: the vocabulary between engines and what keeps or moves their states (kvshare/). A state is
// bytes as the engine's pages and rings hold them, so it means something only to engines with the
// same fingerprint. Refuses nothing by itself: whoever takes a state from elsewhere checks it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace peregrine {

// Enough to continue a token sequence, bit for bit where `recent` is there.
struct SavedState {
  std::vector<int32_t> tokens;  // ids of positions 0 .. length - 1
  // Every row is what an uncached run with exact prefill computes (PrefixRecord::exact).
  bool exact = true;
  // StateStore::save_recent() at the length: window rings, unfinished groups, the drafter's rings.
  // Empty: rows only, to continue by replay.
  std::vector<std::byte> recent;
  // Packed rows 0 .. length / ratio - 1 of one KV source. A leading part of each array is the
  // state of a shorter prefix.
  struct Source {
    std::vector<std::byte> main, index;
  };
  std::vector<Source> sources;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
};

using Fingerprint = std::array<std::byte, 32>;

// What states of an engine look like.
struct StateShape {
  // Everything that changes bits of a state, one "name=value" a line, and its SHA-256. Engines
  // share states only when these agree.
  std::string compatibility;
  Fingerprint fingerprint{};

  int32_t vocab_size = 0;
  int64_t context_tokens = 0;  // longest sequence
  uint64_t recent_bytes = 0;   // SavedState::recent when present
  struct Source {
    int ratio = 1;  // positions a row
    uint64_t main_row_bytes = 0, index_row_bytes = 0;
  };
  std::vector<Source> sources;

  int64_t rows(size_t source, int64_t tokens) const { return tokens / sources[source].ratio; }
  uint64_t row_bytes(int64_t tokens) const {  // main and index rows of all sources
    uint64_t bytes = 0;
    for (size_t i = 0; i < sources.size(); ++i)
      bytes += static_cast<uint64_t>(rows(i, tokens)) *
               (sources[i].main_row_bytes + sources[i].index_row_bytes);
    return bytes;
  }
};

// One sentence on why the state does not fit the shape (sizes, ids, length); empty: it does.
std::string misfit(const SavedState& state, const StateShape& shape);

}  // namespace peregrine
