// The state of all sequences of one engine: window rings, unfinished groups and paged global KV
// (spec: model.md section 6), addressed by slot.
//
// A slot belongs to one running sequence. The store owns the backend memory, the page tables and
// the page pool; it knows how many bytes a state has, not what they mean to the forward pass.
// Positions never leave the host: lengths are the business of whoever owns the slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cache/page_pool.h"
#include "checkpoint/config.h"

namespace peregrine {

// A change of a slot's page table, to be applied in the device's order: work submitted earlier must
// not see it. With copy_from >= 0 the page starts as a copy of that one, with content as those
// bytes (page_bytes of them).
struct PageUpdate {
  int slot = 0;
  int source = 0;
  int32_t index = 0;
  int32_t page = 0;
  int32_t copy_from = -1;
  std::shared_ptr<const std::vector<std::byte>> content;
};

struct StateOptions;

// Hears what happens to a store beside the steps that run on it, so that other ranks can do the
// same. Calls may come from several threads; one about a slot comes before the steps that need it.
class StateObserver {
 public:
  virtual ~StateObserver() = default;
  virtual void made_store(const StateOptions& options) = 0;
  virtual void applied(std::span<const PageUpdate> updates) = 0;
  virtual void loaded_recent(int slot, int64_t tokens, std::span<const std::byte> bytes) = 0;
};

struct StateOptions {
  int slots = 1;
  int max_context = 0;            // tokens a slot can hold at most
  int64_t page_budget_bytes = 0;  // bytes of global KV for all slots; 0: enough for every slot
  // Positions that may be written ahead and taken back: the ring holds window + slack rows. A
  // sequence can be truncated by up to this many positions.
  int slack = 128;
  int rows_per_page = 64;
  StateObserver* observer = nullptr;  // outlives the store
};

class StateStore {
 public:
  // Throws Error(kOutOfMemory) when the backend cannot give the memory.
  StateStore(Backend& backend, const ModelConfig& config, const StateOptions& options);
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  const KvView& view() const { return view_; }
  const StateOptions& options() const { return options_; }
  PagePool& pool() { return pool_; }
  const PagePool& pool() const { return pool_; }
  int window() const { return config_.window_size; }

  // -- slots and pages
  // -----------------------------------------------------------------------------
  int acquire();  // -1 when all slots are taken
  void release(int slot);
  // The three calls below change the host's books at once; the device's page tables change when the
  // updates they collect are applied.
  std::vector<PageUpdate> take_updates();
  void apply(std::span<const PageUpdate> updates);

  // Makes sure the slot has pages for all rows of positions below `tokens`, each page its own:
  // shared pages at or above the first row that can still be written are copied. All or nothing;
  // false when the pool is short.
  bool reserve(int slot, int64_t tokens, int64_t writable_from);
  // Pages that reserve() would lack in the pool; 0 when it would succeed.
  int64_t missing_pages(int slot, int64_t tokens, int64_t writable_from) const;
  int free_slots() const { return static_cast<int>(free_slots_.size()); }
  // Drops pages that hold no row of a position below `tokens`.
  void truncate(int slot, int64_t tokens);
  int64_t pages_for(int64_t tokens) const;  // pages of a sequence of that length, all sources
  std::span<const int32_t> pages(int slot, int source) const;
  // Gives `slot` (without pages) the pages of another list, adding a reference to each.
  void attach(int slot, int source, std::span<const int32_t> pages);

  // Gives a page of the slot, which no other may hold, these bytes: in the device's order, unlike
  // load_global(), because steps in flight may still use what the page was before.
  void fill_page(int slot, int source, int64_t index,
                 std::shared_ptr<const std::vector<std::byte>> content);

  // Rows of `source` that exist once `tokens` positions are processed.
  int64_t rows_of(int source, int64_t tokens) const { return tokens / ratios_[source]; }
  int sources() const { return view_.sources; }

  // -- bytes
  // ----------------------------------------------------------------------------------------- Rings
  // and the unfinished groups of a sequence of `tokens` positions, in position order; enough, with
  // the global rows, to continue bit for bit. Fixed size for a config.
  size_t recent_bytes() const;
  void save_recent(int slot, int64_t tokens, std::byte* out) const;
  void load_recent(int slot, int64_t tokens, const std::byte* in);
  // Main rows then index rows [begin, end) of one source.
  size_t global_bytes(int source, int64_t begin, int64_t end) const;
  void save_global(int slot, int source, int64_t begin, int64_t end, std::byte* out) const;
  void load_global(int slot, int source, int64_t begin, int64_t end, const std::byte* in);
  // The first `rows` rows of a page as bytes for fill_page(); zeros stand for the others.
  void save_page(int32_t page, int64_t rows, std::byte* out) const;
  // The same rows without what lies between them. May run beside steps that do not write them.
  void save_rows(int32_t page, int64_t rows, std::byte* main, std::byte* index) const;
  // Main and index rows as bytes for fill_page().
  std::vector<std::byte> page_of(int64_t rows, const std::byte* main, const std::byte* index) const;

  size_t page_bytes() const { return view_.page_bytes; }
  size_t slot_bytes() const;  // rings, tails and page table of one slot
  int64_t kv_bytes_in_use() const;

 private:
  void note_page(int slot, int source, int64_t index, int32_t page, int32_t copy_from = -1);
  void own_page(int slot, int source, int64_t index);

  Backend& backend_;
  const ModelConfig& config_;
  StateOptions options_;
  std::vector<int> ratios_;  // of each source
  KvView view_;
  PagePool pool_;
  int32_t* device_table_ = nullptr;
  std::vector<std::vector<std::vector<int32_t>>> tables_;  // [slot][source] pages in use
  std::vector<int> free_slots_;
  std::vector<PageUpdate> updates_;
};

}  // namespace peregrine
