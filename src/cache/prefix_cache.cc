#include "cache/prefix_cache.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <list>
#include <utility>

#include "cache/prefix_tree.h"

namespace peregrine {

// What is kept of one token sequence. It is resident while it holds references to the pages of its
// rows; it is an exact point while `recent` is there.
struct PrefixItem {
  PrefixNode* node = nullptr;
  bool exact = true;  // PrefixRecord::exact
  bool resident = false;
  std::vector<std::vector<int32_t>> pages;  // by source
  std::vector<std::byte> recent;
  std::list<PrefixItem>::iterator at;  // itself, in order of use

  bool is_point() const { return !recent.empty(); }
};

struct PrefixCache::Impl {
  using Items = std::list<PrefixItem>;

  Impl(StateStore& store, const PrefixCacheOptions& given)
      : state(store), options(given), held(static_cast<size_t>(store.pool().capacity()), 0) {}
  ~Impl() {
    while (!items.empty()) drop(items.back());
  }

  // -- books
  void touch(PrefixItem& item) { items.splice(items.begin(), items, item.at); }
  int64_t pages_of(int source, int64_t length) const {
    const int rows = state.options().rows_per_page;
    return (state.rows_of(source, length) + rows - 1) / rows;
  }
  bool hold_pages(PrefixItem& item, int slot);
  void release_pages(PrefixItem& item);
  void release_recent(PrefixItem& item);
  void drop(PrefixItem& item);

  // -- choices
  bool worth_keeping(const PrefixItem& item) const;
  bool covered(const PrefixItem& item) const;
  bool frees_pages(const PrefixItem& item) const;
  PrefixItem* serving(PrefixNode* subtree) const;
  void settle(PrefixItem& item);
  void keep_recent_budget();

  StateStore& state;
  const PrefixCacheOptions options;
  PrefixTree tree;
  Items items;                // most recently used first
  std::vector<int32_t> held;  // references of this cache, by page
  int64_t distinct_pages = 0;
  uint64_t recent_bytes = 0;
};

// The slot's pages of the item's rows; false when it has fewer.
bool PrefixCache::Impl::hold_pages(PrefixItem& item, int slot) {
  const int64_t length = item.node->depth;
  for (int source = 0; source < state.sources(); ++source)
    if (static_cast<int64_t>(state.pages(slot, source).size()) < pages_of(source, length))
      return false;
  for (int source = 0; source < state.sources(); ++source) {
    const auto own = state.pages(slot, source).first(static_cast<size_t>(pages_of(source, length)));
    for (const int32_t page : own) {
      state.pool().add_reference(page);
      if (held[static_cast<size_t>(page)]++ == 0) ++distinct_pages;
    }
    item.pages.emplace_back(own.begin(), own.end());
  }
  item.resident = true;
  tree.add_resident(*item.node, 1);
  return true;
}

void PrefixCache::Impl::release_pages(PrefixItem& item) {
  if (!item.resident) return;
  for (const auto& pages : item.pages) {
    for (const int32_t page : pages) {
      if (--held[static_cast<size_t>(page)] == 0) --distinct_pages;
      state.pool().release(page);
    }
  }
  item.pages.clear();
  item.resident = false;
  tree.add_resident(*item.node, -1);
}

void PrefixCache::Impl::release_recent(PrefixItem& item) {
  recent_bytes -= item.recent.size();
  item.recent = {};
}

void PrefixCache::Impl::drop(PrefixItem& item) {
  release_pages(item);
  release_recent(item);
  PrefixNode& node = *item.node;
  node.item = nullptr;
  items.erase(item.at);
  tree.prune(node);
}

// Whether a longer sequence holds rows for the same tokens.
bool PrefixCache::Impl::covered(const PrefixItem& item) const {
  return item.node->resident > (item.resident ? 1 : 0);
}

bool PrefixCache::Impl::worth_keeping(const PrefixItem& item) const {
  if (item.is_point()) return true;
  return options.mode == PrefixCacheMode::kReplay && item.resident && !covered(item);
}

// Whether a page of the item would be free if the cache let go of it.
bool PrefixCache::Impl::frees_pages(const PrefixItem& item) const {
  for (const auto& pages : item.pages)
    for (const int32_t page : pages)
      if (state.pool().references(page) == held[static_cast<size_t>(page)]) return true;
  return false;
}

// An item below the node, one with rows in the pool if there is one.
PrefixItem* PrefixCache::Impl::serving(PrefixNode* node) const {
  while (true) {
    if (node->item != nullptr && (node->item->resident || node->resident == 0)) return node->item;
    assert(!node->children.empty());
    const auto child = std::find_if(node->children.begin(), node->children.end(),
                                    [](const auto& c) { return c.second->resident > 0; });
    node = (child == node->children.end() ? node->children.begin() : child)->second.get();
  }
}

// After the item is new: what it makes superfluous goes.
void PrefixCache::Impl::settle(PrefixItem& item) {
  for (PrefixNode* at = item.node->parent; at != nullptr;) {
    PrefixNode* parent = at->parent;
    if (at->item != nullptr && !worth_keeping(*at->item)) drop(*at->item);
    at = parent;
  }
  keep_recent_budget();
}

// Least recently used recent parts go first; one alone may be larger than the budget.
void PrefixCache::Impl::keep_recent_budget() {
  for (auto at = items.end(); recent_bytes > options.recent_budget_bytes && at != items.begin();) {
    PrefixItem& item = *--at;
    if (item.recent.empty()) continue;
    release_recent(item);
    ++at;
    if (!worth_keeping(item)) drop(item);
  }
}

PrefixCache::PrefixCache(StateStore& state, const PrefixCacheOptions& options)
    : impl_(std::make_unique<Impl>(state, options)) {}
PrefixCache::~PrefixCache() = default;

bool PrefixCache::enabled() const { return impl_->options.mode != PrefixCacheMode::kOff; }

void PrefixCache::insert(PrefixRecord record) {
  Impl& c = *impl_;
  assert(record.length <= static_cast<int64_t>(record.tokens.size()));
  const bool exact_only = c.options.mode == PrefixCacheMode::kExact;
  if (!enabled() || record.length < 1) return;
  if (exact_only && (!record.exact || record.recent.empty())) return;

  PrefixNode& node = c.tree.insert(record.tokens.first(static_cast<size_t>(record.length)));
  if (PrefixItem* old = node.item; old != nullptr) {
    // The same tokens again: an exact state outranks others, a point outranks rows.
    const auto rank = [](bool exact, bool point) { return (exact ? 2 : 0) + (point ? 1 : 0); };
    if (rank(old->exact, old->is_point()) >= rank(record.exact, !record.recent.empty())) {
      c.touch(*old);
      return;
    }
    c.release_pages(*old);
    c.release_recent(*old);
    c.items.erase(old->at);
  }
  PrefixItem& item = c.items.emplace_front();
  item.at = c.items.begin();
  item.node = &node;
  item.exact = record.exact;
  item.recent = std::move(record.recent);
  c.recent_bytes += item.recent.size();
  node.item = &item;
  if (!c.hold_pages(item, record.slot) || !c.worth_keeping(item))
    c.drop(item);
  else
    c.settle(item);
}

PrefixHit PrefixCache::lookup(std::span<const int32_t> tokens, int64_t limit) {
  Impl& c = *impl_;
  PrefixHit hit;
  limit = std::min(limit, static_cast<int64_t>(tokens.size()));
  if (!enabled() || limit < 1) return hit;
  const PrefixTree::Match match = c.tree.match(tokens.first(static_cast<size_t>(limit)));
  if (match.length == 0) return hit;
  if (c.options.mode == PrefixCacheMode::kReplay) {
    hit.replay_length = match.length;
    c.touch(*c.serving(match.subtree));
  }
  const auto point = std::find_if(match.passed.rbegin(), match.passed.rend(),
                                  [](const PrefixNode* n) { return n->item->is_point(); });
  if (point != match.passed.rend()) {
    hit.exact_length = (*point)->depth;
    hit.rows_exact = (*point)->item->exact;
    c.touch(*(*point)->item);
  }
  return hit;
}

bool PrefixCache::attach(std::span<const int32_t> tokens, int64_t length, bool exact, int slot) {
  Impl& c = *impl_;
  assert(length > 0 && length <= static_cast<int64_t>(tokens.size()));
  const PrefixTree::Match match = c.tree.match(tokens.first(static_cast<size_t>(length)));
  if (match.length != length) return false;
  PrefixItem* item = exact ? match.subtree->item : c.serving(match.subtree);
  if (item == nullptr || (exact && (item->node->depth != length || !item->is_point())))
    return false;
  for (int source = 0; source < c.state.sources(); ++source)
    c.state.attach(slot, source,
                   std::span<const int32_t>(item->pages[static_cast<size_t>(source)])
                       .first(static_cast<size_t>(c.pages_of(source, length))));
  if (exact) c.state.load_recent(slot, length, item->recent.data());
  return true;
}

int64_t PrefixCache::evict(int64_t pages) {
  Impl& c = *impl_;
  const int before = c.state.pool().free_pages();
  const auto freed = [&] { return static_cast<int64_t>(c.state.pool().free_pages() - before); };
  for (auto at = c.items.end(); freed() < pages && at != c.items.begin();) {
    PrefixItem& item = *--at;
    if (!c.frees_pages(item)) continue;
    ++at;
    c.drop(item);
  }
  return freed();
}

void PrefixCache::clear() {
  while (!impl_->items.empty()) impl_->drop(impl_->items.back());
}

int64_t PrefixCache::pages() const { return impl_->distinct_pages; }
uint64_t PrefixCache::recent_bytes() const { return impl_->recent_bytes; }
int64_t PrefixCache::entries() const { return static_cast<int64_t>(impl_->items.size()); }

void PrefixCache::count_references(std::span<int32_t> counts) const {
  assert(counts.size() >= impl_->held.size());
  for (size_t page = 0; page < impl_->held.size(); ++page) counts[page] += impl_->held[page];
}

}  // namespace peregrine
