#include "cache/state_store.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/fail.h"

namespace peregrine {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Pages of one sequence that fills its context.
int64_t context_pages(const ModelConfig& config, const StateOptions& options) {
  int64_t pages = 0;
  for (const int layer : config.kv_source_layers)
    pages += ceil_div(ceil_div(options.max_context, config.ratio(layer)), options.rows_per_page);
  return pages;
}

size_t page_size(const ModelConfig& config, const StateOptions& options) {
  const size_t main_row = static_cast<size_t>(config.head_dim / 2 + config.head_dim / 16);
  const size_t index_row =
      static_cast<size_t>(config.index_head_dim / 2 + config.index_head_dim / 32);
  return (main_row + index_row) * static_cast<size_t>(options.rows_per_page);
}

int page_count(const ModelConfig& config, const StateOptions& options) {
  const int64_t all = context_pages(config, options) * options.slots;
  if (options.page_budget_bytes == 0) return static_cast<int>(all);
  const int64_t budget =
      options.page_budget_bytes / static_cast<int64_t>(page_size(config, options));
  return static_cast<int>(std::min(all, budget));
}

}  // namespace

StateStore::StateStore(Backend& backend, const ModelConfig& config, const StateOptions& options)
    : backend_(backend),
      config_(config),
      options_(options),
      pool_(page_count(config, options)),
      tables_(static_cast<size_t>(options.slots)) {
  assert(options.max_context > 0 && options.slack >= 1);
  for (const int layer : config.kv_source_layers) ratios_.push_back(config.ratio(layer));
  view_.window = config.window_size;
  view_.ring_layers = config.n_layers + config.n_mtp_layers;
  view_.ring_rows = config.window_size + options.slack;
  view_.window_row_bytes = static_cast<size_t>(config.head_dim + config.head_dim / 32);
  view_.rows_per_page = options.rows_per_page;
  view_.main_row_bytes = static_cast<size_t>(config.head_dim / 2 + config.head_dim / 16);
  view_.index_row_bytes =
      static_cast<size_t>(config.index_head_dim / 2 + config.index_head_dim / 32);
  view_.page_bytes = page_size(config, options);
  view_.sources = static_cast<int>(config.kv_source_layers.size());
  view_.max_pages = static_cast<int>(ceil_div(options.max_context, options.rows_per_page));
  view_.head_dim = config.head_dim;
  // Even positions within reach of a truncation, and the one that may be open before them.
  view_.tail_rows = options.slack / 2 + 2;

  const size_t slots = static_cast<size_t>(options.slots);
  const size_t ring_bytes = static_cast<size_t>(view_.ring_layers) *
                            static_cast<size_t>(view_.ring_rows) * view_.window_row_bytes;
  const size_t tail_bytes = static_cast<size_t>(view_.sources) *
                            static_cast<size_t>(view_.tail_rows) * 2 *
                            static_cast<size_t>(view_.head_dim) * sizeof(float);
  const size_t table_entries =
      static_cast<size_t>(view_.sources) * static_cast<size_t>(view_.max_pages);
  view_.rings = static_cast<uint8_t*>(backend.allocate(slots * ring_bytes));
  view_.tails = static_cast<float*>(backend.allocate(slots * tail_bytes));
  view_.pages = static_cast<uint8_t*>(
      backend.allocate(static_cast<size_t>(pool_.capacity()) * view_.page_bytes));
  device_table_ = static_cast<int32_t*>(backend.allocate(slots * table_entries * sizeof(int32_t)));
  view_.page_table = device_table_;
  for (auto& table : tables_) table.resize(static_cast<size_t>(view_.sources));
  for (int slot = options.slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  if (options.observer) options.observer->made_store(options);
}

StateStore::~StateStore() {
  backend_.synchronize();
  backend_.release(view_.rings);
  backend_.release(view_.tails);
  backend_.release(view_.pages);
  backend_.release(device_table_);
}

int StateStore::acquire() {
  if (free_slots_.empty()) return -1;
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void StateStore::release(int slot) {
  truncate(slot, 0);
  free_slots_.push_back(slot);
}

void StateStore::note_page(int slot, int source, int64_t index, int32_t page, int32_t copy_from) {
  updates_.push_back({.slot = slot,
                      .source = source,
                      .index = static_cast<int32_t>(index),
                      .page = page,
                      .copy_from = copy_from});
}

std::vector<PageUpdate> StateStore::take_updates() { return std::exchange(updates_, {}); }

void StateStore::apply(std::span<const PageUpdate> updates) {
  const auto at = [&](int32_t page) {
    return Tensor{view_.pages + static_cast<size_t>(page) * view_.page_bytes, 1,
                  static_cast<int64_t>(view_.page_bytes), Elem::kU8};
  };
  for (const PageUpdate& u : updates) {
    if (u.copy_from >= 0) backend_.copy(at(u.copy_from), at(u.page));
    if (u.content) backend_.copy_in(at(u.page).data, u.content->data(), u.content->size());
    const int64_t entry =
        (static_cast<int64_t>(u.slot) * view_.sources + u.source) * view_.max_pages + u.index;
    backend_.copy_in(device_table_ + entry, &u.page, sizeof(u.page));
  }
  if (options_.observer && !updates.empty()) options_.observer->applied(updates);
}

// Replaces a shared page by a copy of its own. The shared page keeps its content until the copy has
// run: whoever else holds it only reads it.
void StateStore::own_page(int slot, int source, int64_t index) {
  int32_t& page =
      tables_[static_cast<size_t>(slot)][static_cast<size_t>(source)][static_cast<size_t>(index)];
  if (pool_.references(page) == 1) return;
  const int32_t copy = pool_.allocate();
  note_page(slot, source, index, copy, page);
  pool_.release(page);
  page = copy;
}

int64_t StateStore::missing_pages(int slot, int64_t tokens, int64_t writable_from) const {
  int64_t needed = 0;
  for (int source = 0; source < view_.sources; ++source) {
    const auto table = pages(slot, source);
    const auto have = static_cast<int64_t>(table.size());
    needed += std::max<int64_t>(0, ceil_div(rows_of(source, tokens), view_.rows_per_page) - have);
    for (int64_t i = rows_of(source, writable_from) / view_.rows_per_page; i < have; ++i)
      needed += pool_.references(table[static_cast<size_t>(i)]) > 1 ? 1 : 0;
  }
  return std::max<int64_t>(0, needed - pool_.free_pages());
}

bool StateStore::reserve(int slot, int64_t tokens, int64_t writable_from) {
  if (missing_pages(slot, tokens, writable_from) > 0) return false;
  for (int source = 0; source < view_.sources; ++source) {
    auto& table = tables_[static_cast<size_t>(slot)][static_cast<size_t>(source)];
    for (int64_t i = rows_of(source, writable_from) / view_.rows_per_page;
         i < static_cast<int64_t>(table.size()); ++i)
      own_page(slot, source, i);
    const int64_t want = ceil_div(rows_of(source, tokens), view_.rows_per_page);
    while (static_cast<int64_t>(table.size()) < want) {
      table.push_back(pool_.allocate());
      note_page(slot, source, static_cast<int64_t>(table.size()) - 1, table.back());
    }
  }
  return true;
}

void StateStore::truncate(int slot, int64_t tokens) {
  for (int source = 0; source < view_.sources; ++source) {
    auto& table = tables_[static_cast<size_t>(slot)][static_cast<size_t>(source)];
    const auto keep = static_cast<size_t>(ceil_div(rows_of(source, tokens), view_.rows_per_page));
    while (table.size() > keep) {
      pool_.release(table.back());
      table.pop_back();
    }
  }
}

int64_t StateStore::pages_for(int64_t tokens) const {
  int64_t pages = 0;
  for (int source = 0; source < view_.sources; ++source)
    pages += ceil_div(rows_of(source, tokens), view_.rows_per_page);
  return pages;
}

std::span<const int32_t> StateStore::pages(int slot, int source) const {
  return tables_[static_cast<size_t>(slot)][static_cast<size_t>(source)];
}

void StateStore::attach(int slot, int source, std::span<const int32_t> pages) {
  auto& table = tables_[static_cast<size_t>(slot)][static_cast<size_t>(source)];
  assert(table.empty());
  for (const int32_t page : pages) {
    pool_.add_reference(page);
    table.push_back(page);
    note_page(slot, source, static_cast<int64_t>(table.size()) - 1, page);
  }
}

void StateStore::fill_page(int slot, int source, int64_t index,
                           std::shared_ptr<const std::vector<std::byte>> content) {
  const int32_t page = pages(slot, source)[static_cast<size_t>(index)];
  assert(content->size() == view_.page_bytes && pool_.references(page) == 1);
  note_page(slot, source, index, page);
  updates_.back().content = std::move(content);
}

// -- bytes ---------------------------------------------------------------------------------------

size_t StateStore::recent_bytes() const {
  return static_cast<size_t>(view_.ring_layers) * static_cast<size_t>(view_.window) *
             view_.window_row_bytes +
         static_cast<size_t>(view_.sources) * 2 * static_cast<size_t>(view_.head_dim) *
             sizeof(float);
}

namespace {

// Calls visit(backend address, offset, bytes) for every piece of a state's recent part: the last
// `window` ring rows of each layer (absent positions at the start are skipped), then the open
// half of each source (only when the length is odd).
template <typename Visit>
void for_recent(const KvView& view, int slot, int64_t tokens, Visit visit) {
  size_t offset = 0;
  for (int layer = 0; layer < view.ring_layers; ++layer) {
    for (int64_t i = 0; i < view.window; ++i, offset += view.window_row_bytes) {
      const int64_t pos = tokens - view.window + i;
      if (pos >= 0) visit(view.ring_row(slot, layer, pos), offset, view.window_row_bytes);
    }
  }
  const size_t half = 2 * static_cast<size_t>(view.head_dim) * sizeof(float);
  for (int source = 0; source < view.sources; ++source, offset += half)
    if (tokens % 2 == 1)
      visit(reinterpret_cast<uint8_t*>(view.tail(slot, source, tokens - 1)), offset, half);
}

}  // namespace

void StateStore::save_recent(int slot, int64_t tokens, std::byte* out) const {
  std::fill_n(out, recent_bytes(), std::byte{0});
  for_recent(view_, slot, tokens, [&](uint8_t* at, size_t offset, size_t bytes) {
    backend_.copy_out(out + offset, at, bytes);
  });
}

void StateStore::load_recent(int slot, int64_t tokens, const std::byte* in) {
  for_recent(view_, slot, tokens, [&](uint8_t* at, size_t offset, size_t bytes) {
    backend_.copy_in(at, in + offset, bytes);
  });
  if (options_.observer) options_.observer->loaded_recent(slot, tokens, {in, recent_bytes()});
}

size_t StateStore::global_bytes(int, int64_t begin, int64_t end) const {
  return static_cast<size_t>(end - begin) * (view_.main_row_bytes + view_.index_row_bytes);
}

namespace {

// Calls visit(page number, row in page, rows, offset main, offset index) for each run of rows that
// shares a page.
template <typename Visit>
void for_rows(const KvView& view, std::span<const int32_t> table, int64_t begin, int64_t end,
              Visit visit) {
  const size_t index_start = static_cast<size_t>(end - begin) * view.main_row_bytes;
  for (int64_t row = begin; row < end;) {
    const int64_t in_page = row % view.rows_per_page;
    const int64_t count = std::min<int64_t>(end - row, view.rows_per_page - in_page);
    uint8_t* page =
        view.pages +
        static_cast<size_t>(table[static_cast<size_t>(row / view.rows_per_page)]) * view.page_bytes;
    const auto done = static_cast<size_t>(row - begin);
    const auto n = static_cast<size_t>(count);
    visit(page + static_cast<size_t>(in_page) * view.main_row_bytes, done * view.main_row_bytes,
          n * view.main_row_bytes);
    visit(page + static_cast<size_t>(view.rows_per_page) * view.main_row_bytes +
              static_cast<size_t>(in_page) * view.index_row_bytes,
          index_start + done * view.index_row_bytes, n * view.index_row_bytes);
    row += count;
  }
}

}  // namespace

void StateStore::save_global(int slot, int source, int64_t begin, int64_t end,
                             std::byte* out) const {
  for_rows(view_, pages(slot, source), begin, end, [&](uint8_t* at, size_t offset, size_t bytes) {
    backend_.copy_out(out + offset, at, bytes);
  });
}

void StateStore::load_global(int slot, int source, int64_t begin, int64_t end,
                             const std::byte* in) {
  for_rows(view_, pages(slot, source), begin, end, [&](uint8_t* at, size_t offset, size_t bytes) {
    backend_.copy_in(at, in + offset, bytes);
  });
}

void StateStore::save_page(int32_t page, int64_t rows, std::byte* out) const {
  std::fill_n(out, view_.page_bytes, std::byte{0});
  save_rows(page, rows, out, out + static_cast<size_t>(view_.rows_per_page) * view_.main_row_bytes);
}

void StateStore::save_rows(int32_t page, int64_t rows, std::byte* main, std::byte* index) const {
  assert(rows <= view_.rows_per_page);
  const uint8_t* from = view_.pages + static_cast<size_t>(page) * view_.page_bytes;
  const size_t index_start = static_cast<size_t>(view_.rows_per_page) * view_.main_row_bytes;
  const auto n = static_cast<size_t>(rows);
  backend_.copy_out(main, from, n * view_.main_row_bytes);
  backend_.copy_out(index, from + index_start, n * view_.index_row_bytes);
}

std::vector<std::byte> StateStore::page_of(int64_t rows, const std::byte* main,
                                           const std::byte* index) const {
  assert(rows <= view_.rows_per_page);
  const auto n = static_cast<size_t>(rows);
  const size_t index_start = static_cast<size_t>(view_.rows_per_page) * view_.main_row_bytes;
  std::vector<std::byte> page(view_.page_bytes);
  std::copy_n(main, n * view_.main_row_bytes, page.data());
  std::copy_n(index, n * view_.index_row_bytes, page.data() + index_start);
  return page;
}

size_t StateStore::slot_bytes() const {
  return static_cast<size_t>(view_.ring_layers) * static_cast<size_t>(view_.ring_rows) *
             view_.window_row_bytes +
         static_cast<size_t>(view_.sources) * static_cast<size_t>(view_.tail_rows) * 2 *
             static_cast<size_t>(view_.head_dim) * sizeof(float) +
         static_cast<size_t>(view_.sources) * static_cast<size_t>(view_.max_pages) *
             sizeof(int32_t);
}

int64_t StateStore::kv_bytes_in_use() const {
  return static_cast<int64_t>(pool_.used_pages()) * static_cast<int64_t>(view_.page_bytes);
}

}  // namespace peregrine
