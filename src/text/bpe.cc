#include "text/bpe.h"

#include <algorithm>
#include <bit>

namespace peregrine {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

PairMerges::PairMerges(size_t count) : slots_(std::bit_ceil(2 * count + 2)) {}

size_t PairMerges::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  uint64_t hash = pair * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  size_t slot = hash & mask;
  while (slots_[slot].pair != pair && slots_[slot].pair != kEmpty) slot = (slot + 1) & mask;
  return slot;
}

bool PairMerges::add(int32_t left, int32_t right, int32_t rank, int32_t result) {
  const uint64_t pair = pair_key(left, right);
  Slot& slot = slots_[slot_of(pair)];
  if (slot.pair != kEmpty) return false;
  slot = {pair, {rank, result}};
  return true;
}

PairMerges::Merge PairMerges::find(int32_t left, int32_t right) const {
  return slots_[slot_of(pair_key(left, right))].merge;
}

void BpeMerger::offer(int32_t position) {
  const Symbol& left = symbols_[position];
  if (left.next < 0) return;
  const Symbol& right = symbols_[left.next];
  const PairMerges::Merge merge = merges_.find(left.id, right.id);
  if (merge.rank < 0) return;
  heap_.push_back({merge.rank, position, left.id, right.id, merge.result});
}

void BpeMerger::merge(std::string_view piece, std::vector<int32_t>& ids) {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto count = static_cast<int32_t>(piece.size());
  symbols_.clear();
  heap_.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols_.push_back(
        {byte_ids_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i < count; ++i) offer(i);
  std::make_heap(heap_.begin(), heap_.end(), later);

  const auto offer_to_heap = [&](int32_t position) {
    const size_t before = heap_.size();
    offer(position);
    if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), later);
  };
  while (!heap_.empty()) {
    const Candidate best = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
    Symbol& left = symbols_[best.position];
    // A candidate is stale once either side has merged with something else.
    if (left.id != best.left || left.next < 0 || symbols_[left.next].id != best.right) continue;
    Symbol& right = symbols_[left.next];
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols_[left.next].previous = best.position;
    offer_to_heap(best.position);
    if (left.previous >= 0) offer_to_heap(left.previous);
  }
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbols_[i].next) ids.push_back(symbols_[i].id);
}

}  // namespace peregrine
