#include "cache/prefix_cache.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <list>
#include <optional>
#include <utility>

#include "cache/prefix_spill.h"
#include "cache/prefix_tree.h"

namespace peregrine {

// What is kept of one token sequence. It is resident while it holds references to the pages of its
// rows; it is an exact point while its recent part is in memory or on file.
struct PrefixItem {
  PrefixNode* node = nullptr;
  bool exact = true;  // PrefixRecord::exact
  bool resident = false;
  // The pages were read from a file: the device may not have them yet, so they are not read again.
  bool restored = false;
  std::vector<std::vector<int32_t>> pages;  // by source
  std::vector<std::byte> recent;
  PrefixSpill::File file;              // with rows and recent part; the path is empty without one
  std::list<PrefixItem>::iterator at;  // itself, in order of use

  bool has_file() const { return !file.path.empty(); }
  bool is_point() const { return !recent.empty() || has_file(); }
};

struct PrefixCache::Impl {
  using Items = std::list<PrefixItem>;

  Impl(StateStore& store, const PrefixCacheOptions& given);
  ~Impl();

  // -- books
  void touch(PrefixItem& item) { items.splice(items.begin(), items, item.at); }
  PrefixItem& add(PrefixNode& node, bool exact);
  int64_t pages_of(int source, int64_t length) const;
  bool hold_pages(PrefixItem& item, int slot);
  void hold_recent(PrefixItem& item, std::vector<std::byte> recent);
  void hold_file(PrefixItem& item, PrefixSpill::File file);
  void release_pages(PrefixItem& item);
  void release_recent(PrefixItem& item);
  void release_file(PrefixItem& item);
  void forget_file(PrefixItem& item);
  void drop(PrefixItem& item);

  // -- choices
  bool worth_keeping(const PrefixItem& item) const;
  bool covered(const PrefixItem& item) const;
  bool frees_pages(const PrefixItem& item) const;
  PrefixItem* serving(PrefixNode* subtree) const;
  bool replaces(const PrefixRecord& record, const PrefixItem& old) const;
  void drop_superfluous_prefixes(const PrefixItem& item);

  // -- budgets and files
  void keep_recent_budget();
  void spill(PrefixItem& item);
  void make_room_on_disk(uint64_t bytes);
  void sweep();
  int64_t evict(int64_t pages);
  void attach_resident(const PrefixItem& item, int64_t length, int slot);
  bool attach_file(std::span<const int32_t> tokens, PrefixItem& item, int slot);

  StateStore& state;
  const PrefixCacheOptions options;
  PrefixSpill files;
  PrefixTree tree;
  Items items;                // most recently used first
  std::vector<int32_t> held;  // references of this cache, by page
  int64_t distinct_pages = 0;
  uint64_t recent_bytes = 0;
  uint64_t file_bytes = 0;
  int64_t file_count = 0;
  bool unswept = false;  // an item lost its file and may be good for nothing now
};

namespace {

SpillShape spill_shape(const StateStore& state, uint64_t fingerprint) {
  return {.fingerprint = fingerprint,
          .recent_bytes = state.recent_bytes(),
          .page_bytes = state.page_bytes(),
          .rows_per_page = state.options().rows_per_page,
          .sources = state.sources()};
}

}  // namespace

PrefixCache::Impl::Impl(StateStore& store, const PrefixCacheOptions& given)
    : state(store),
      options(given),
      files(given.mode == PrefixCacheMode::kOff ? std::string() : given.spill_dir,
            spill_shape(store, given.fingerprint)),
      held(static_cast<size_t>(store.pool().capacity()), 0) {
  if (!files.enabled()) return;
  for (PrefixSpill::Entry& found : files.scan()) {
    PrefixNode& node = tree.insert(found.tokens);
    const bool usable = found.exact || options.mode == PrefixCacheMode::kReplay;
    if (!usable || node.item != nullptr ||
        static_cast<int64_t>(found.tokens.size()) > state.options().max_context) {
      files.remove(found.file);
      tree.prune(node);
      continue;
    }
    hold_file(add(node, found.exact), std::move(found.file));
  }
  make_room_on_disk(0);
  sweep();
}

PrefixCache::Impl::~Impl() {
  for (auto at = items.rbegin(); at != items.rend(); ++at) spill(*at);
  while (!items.empty()) {
    forget_file(items.back());
    drop(items.back());
  }
}

// -- books ---------------------------------------------------------------------------------------

PrefixItem& PrefixCache::Impl::add(PrefixNode& node, bool exact) {
  PrefixItem& item = items.emplace_front();
  item.at = items.begin();
  item.node = &node;
  item.exact = exact;
  node.item = &item;
  return item;
}

int64_t PrefixCache::Impl::pages_of(int source, int64_t length) const {
  const int rows = state.options().rows_per_page;
  return (state.rows_of(source, length) + rows - 1) / rows;
}

// The slot's pages of the item's rows; false when it has fewer.
bool PrefixCache::Impl::hold_pages(PrefixItem& item, int slot) {
  const int64_t length = item.node->depth;
  for (int source = 0; source < state.sources(); ++source)
    if (std::ssize(state.pages(slot, source)) < pages_of(source, length)) return false;
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

void PrefixCache::Impl::hold_recent(PrefixItem& item, std::vector<std::byte> recent) {
  item.recent = std::move(recent);
  recent_bytes += item.recent.size();
}

void PrefixCache::Impl::hold_file(PrefixItem& item, PrefixSpill::File file) {
  item.file = std::move(file);
  file_bytes += item.file.bytes;
  ++file_count;
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
  item.resident = item.restored = false;
  tree.add_resident(*item.node, -1);
}

void PrefixCache::Impl::release_recent(PrefixItem& item) {
  recent_bytes -= item.recent.size();
  item.recent = {};
}

void PrefixCache::Impl::release_file(PrefixItem& item) {
  if (!item.has_file()) return;
  files.remove(item.file);
  forget_file(item);
}

// The file stays, or has gone already.
void PrefixCache::Impl::forget_file(PrefixItem& item) {
  if (!item.has_file()) return;
  file_bytes -= item.file.bytes;
  --file_count;
  item.file = {};
  unswept = true;
}

void PrefixCache::Impl::drop(PrefixItem& item) {
  release_pages(item);
  release_recent(item);
  release_file(item);
  PrefixNode& node = *item.node;
  node.item = nullptr;
  items.erase(item.at);
  tree.prune(node);
}

// -- choices -------------------------------------------------------------------------------------

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

// Whether a record says more than what is kept of the same tokens: exact rows outrank others, then
// a point in memory outranks one without.
bool PrefixCache::Impl::replaces(const PrefixRecord& record, const PrefixItem& old) const {
  if (record.exact != old.exact) return record.exact;
  return !old.resident || (old.recent.empty() && !record.recent.empty());
}

// Shorter entries without a point: the item's pages serve as well.
void PrefixCache::Impl::drop_superfluous_prefixes(const PrefixItem& item) {
  for (PrefixNode* at = item.node->parent; at != nullptr;) {
    PrefixNode* parent = at->parent;
    if (at->item != nullptr && !worth_keeping(*at->item)) drop(*at->item);
    at = parent;
  }
}

// -- budgets and files ---------------------------------------------------------------------------

// Least recently used recent parts leave memory first.
void PrefixCache::Impl::keep_recent_budget() {
  for (auto at = items.end(); recent_bytes > options.recent_budget_bytes && at != items.begin();) {
    PrefixItem& item = *--at;
    if (item.recent.empty()) continue;
    spill(item);
    release_recent(item);
    if (worth_keeping(item)) continue;
    ++at;
    drop(item);
  }
}

// Writes the point to a file if it has none; it has none afterwards if that failed.
void PrefixCache::Impl::spill(PrefixItem& item) {
  if (!files.enabled() || item.has_file() || item.recent.empty() || !item.resident || item.restored)
    return;
  const int64_t length = item.node->depth;
  std::vector<int64_t> counts;
  for (const auto& pages : item.pages) counts.push_back(std::ssize(pages));
  const uint64_t bytes = files.file_bytes(length, counts);
  if (bytes > options.spill_budget_bytes) return;
  make_room_on_disk(bytes);
  const std::vector<int32_t> tokens = tree.tokens(*item.node);
  const auto read_page = [&](int source, int64_t index, std::byte* out) {
    const int64_t rows_per_page = state.options().rows_per_page;
    const int64_t rows = state.rows_of(source, length) - index * rows_per_page;
    state.save_page(item.pages[static_cast<size_t>(source)][static_cast<size_t>(index)],
                    std::min(rows, rows_per_page), out);
  };
  PrefixSpill::File file = files.write({.tokens = tokens,
                                        .exact = item.exact,
                                        .recent = item.recent,
                                        .pages = std::move(counts),
                                        .read_page = read_page});
  if (!file.path.empty()) hold_file(item, std::move(file));
}

// Removes files of least recently used points until `bytes` more fit. The items stay until sweep().
void PrefixCache::Impl::make_room_on_disk(uint64_t bytes) {
  for (auto at = items.rbegin();
       at != items.rend() && file_bytes + bytes > options.spill_budget_bytes; ++at)
    release_file(*at);
}

// Drops what a lost file made worthless. Callers hold no item across it.
void PrefixCache::Impl::sweep() {
  if (!std::exchange(unswept, false)) return;
  for (auto at = items.begin(); at != items.end();) {
    PrefixItem& item = *at++;
    if (!worth_keeping(item)) drop(item);
  }
  unswept = false;
}

void PrefixCache::Impl::attach_resident(const PrefixItem& item, int64_t length, int slot) {
  for (int source = 0; source < state.sources(); ++source)
    state.attach(slot, source,
                 std::span<const int32_t>(item.pages[static_cast<size_t>(source)])
                     .first(static_cast<size_t>(pages_of(source, length))));
}

// Fills pages of the slot's own from the item's file. Making room may cost other items, not this
// one: it was just used, and without pages it has none to give.
bool PrefixCache::Impl::attach_file(std::span<const int32_t> tokens, PrefixItem& item, int slot) {
  const auto length = static_cast<int64_t>(tokens.size());
  std::vector<int64_t> counts;
  for (int source = 0; source < state.sources(); ++source)
    counts.push_back(pages_of(source, length));
  std::optional<PrefixSpill::Pages> pages =
      files.read_pages(item.file, tree.tokens(*item.node), counts);
  if (!pages) {
    forget_file(item);
    return false;
  }
  evict(state.missing_pages(slot, length, length));
  if (!state.reserve(slot, length, length)) return false;
  for (int source = 0; source < state.sources(); ++source)
    for (int64_t i = 0; i < counts[static_cast<size_t>(source)]; ++i)
      state.fill_page(slot, source, i,
                      std::make_shared<const std::vector<std::byte>>(std::move(
                          (*pages)[static_cast<size_t>(source)][static_cast<size_t>(i)])));
  if (length == item.node->depth) item.restored = hold_pages(item, slot);
  return true;
}

int64_t PrefixCache::Impl::evict(int64_t pages) {
  const int before = state.pool().free_pages();
  const auto freed = [&] { return static_cast<int64_t>(state.pool().free_pages() - before); };
  for (auto at = items.end(); freed() < pages && at != items.begin();) {
    PrefixItem& item = *--at;
    if (!frees_pages(item)) continue;
    spill(item);
    release_recent(item);
    release_pages(item);
    if (worth_keeping(item)) continue;
    ++at;
    drop(item);
  }
  return freed();
}

// -- the public calls ----------------------------------------------------------------------------

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
  PrefixItem* item = node.item;
  if (item == nullptr) {
    item = &c.add(node, record.exact);
  } else {
    c.touch(*item);
    if (!c.replaces(record, *item)) return;
    c.release_pages(*item);
    c.release_recent(*item);
    // Exact rows are the same whoever computed them; others belong with their own recent part.
    if (!item->exact || !record.exact) c.release_file(*item);
    item->exact = record.exact;
  }
  const bool held = c.hold_pages(*item, record.slot);
  if (held) c.hold_recent(*item, std::move(record.recent));
  if (c.worth_keeping(*item)) {
    c.drop_superfluous_prefixes(*item);
    c.keep_recent_budget();
  } else {
    c.drop(*item);
  }
  c.sweep();
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
  c.touch(*item);

  std::optional<std::vector<std::byte>> recent;
  if (exact && item->recent.empty()) {
    recent = c.files.read_recent(item->file, tokens.first(static_cast<size_t>(length)));
    if (!recent) {
      c.forget_file(*item);
      c.sweep();
      return false;
    }
  }
  bool attached = item->resident;
  if (attached)
    c.attach_resident(*item, length, slot);
  else
    attached = c.attach_file(tokens.first(static_cast<size_t>(length)), *item, slot);
  if (attached && exact) {
    c.state.load_recent(slot, length, recent ? recent->data() : item->recent.data());
    if (recent && item->resident) c.hold_recent(*item, std::move(*recent));
    c.keep_recent_budget();
  }
  c.sweep();
  return attached;
}

int64_t PrefixCache::evict(int64_t pages) {
  const int64_t freed = impl_->evict(pages);
  impl_->sweep();
  return freed;
}

void PrefixCache::clear() {
  while (!impl_->items.empty()) impl_->drop(impl_->items.back());
}

int64_t PrefixCache::pages() const { return impl_->distinct_pages; }
SpillStats PrefixCache::spill_stats() const {
  return {
      .points = impl_->file_count, .bytes = impl_->file_bytes, .failures = impl_->files.failures()};
}
uint64_t PrefixCache::recent_bytes() const { return impl_->recent_bytes; }
int64_t PrefixCache::entries() const { return static_cast<int64_t>(impl_->items.size()); }

void PrefixCache::count_references(std::span<int32_t> counts) const {
  assert(counts.size() >= impl_->held.size());
  for (size_t page = 0; page < impl_->held.size(); ++page) counts[page] += impl_->held[page];
}

}  // namespace peregrine
