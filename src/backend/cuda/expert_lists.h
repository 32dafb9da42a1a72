// Which rows go to which expert, worked out on the device.
//
// A pair is a row and one of its experts: pair row * slots + slot, slots = active + 1 with a shared
// expert, which takes the last slot of every row and is the last entry of the table of experts.
// Tiles are up to `columns` pairs of one expert. The tiles of the shared expert come first.
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

// Limits of the kernels, checked when the backend is made. The shared expert counts too.
inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxActive = 32;

struct ExpertTile {
  int32_t expert = 0;  // in the table
  int32_t begin = 0;   // first entry of `order`
  int32_t count = 0;   // 1..columns
};

struct ExpertLists {
  int32_t* order = nullptr;     // [rows * slots] pairs, those of one expert together
  ExpertTile* tiles = nullptr;  // [max_tiles]
  int32_t* n_tiles = nullptr;
  int max_tiles = 0;
  int shared_tiles = 0;  // the first of them
  int slots = 0;
};

// ids i32 [rows, active]. Lists of `rows` rows among `experts` routed experts (at most
// kMaxExperts).
ExpertLists make_lists(const Launch& launch, const int32_t* ids, int64_t rows, int active,
                       int experts, bool shared, int columns, Carve& memory);

}  // namespace peregrine::cuda
