// What the leading rank of a tensor-parallel group tells the others, as bytes.
//
// A message is a run of orders; an order is its kind and its fields (rank_bytes.h).
#pragma once

#include <cstdint>

namespace peregrine {

enum class OrderKind : uint8_t {
  kStore,      // make a store of these StateOptions; an earlier one goes with what runs on it
  kForward,    // make a Forward: max rows
  kDrafter,    // make a Drafter: max rows, max segments
  kPages,      // apply page updates
  kRecent,     // load a slot's recent part
  kStep,       // run a step
  kDrafts,     // begin drafts
  kDraftSlot,  // one slot of them
  kEnd,        // no more orders
};

// Tokens before a segment's first position that its n-grams may reach back to.
constexpr int64_t kOrderHistory = 16;

}  // namespace peregrine
