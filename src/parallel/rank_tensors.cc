#include "parallel/rank_tensors.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "formats/bf16.h"
#include "model/drafter.h"
#include "model/step.h"

namespace peregrine {
namespace {

// Act values of a bf16 model are bf16 numbers.
size_t value_bytes(bool narrow) { return narrow ? sizeof(uint16_t) : sizeof(float); }

void append_values(Bytes& bytes, const float* values, size_t n, bool narrow) {
  const size_t at = bytes.size();
  bytes.resize(at + n * value_bytes(narrow));
  if (n == 0) return;
  if (!narrow) {
    std::memcpy(bytes.data() + at, values, n * sizeof(float));
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(bytes.data() + at);
  for (size_t i = 0; i < n; ++i) to[i] = bf16_bits(values[i]);
}

// Calls use(i, value) for n values.
template <typename Use>
void read_values(const std::byte* from, size_t n, bool narrow, Use use) {
  if (narrow) {
    const auto* values = reinterpret_cast<const uint16_t*>(from);
    for (size_t i = 0; i < n; ++i) use(i, bf16_value(values[i]));
  } else {
    const auto* values = reinterpret_cast<const float*>(from);
    for (size_t i = 0; i < n; ++i) use(i, values[i]);
  }
}

uint64_t shape_of(int64_t rows, int64_t cols) {
  return static_cast<uint64_t>(rows) << 32 | static_cast<uint64_t>(cols);
}

bool is_narrow(const Backend& backend) { return backend.numerics() == Numerics::kBF16; }

Tensor f32_rows(std::vector<float>& buffer, int64_t rows, int64_t cols) {
  buffer.resize(static_cast<size_t>(rows * cols));
  return {buffer.data(), rows, cols, Elem::kF32};
}

}  // namespace

RankTensors::RankTensors(std::unique_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)),
      split_(communicator_->rank(), communicator_->ranks()),
      outgoing_(static_cast<size_t>(communicator_->ranks())) {}

// -- inside a step -------------------------------------------------------------------------------

std::span<const Bytes> RankTensors::share(const Collective& what, std::span<const std::byte> mine,
                                          bool leader_only) {
  if (!leader_only) return communicator_->all_gather(what, mine);
  for (size_t rank = 0; rank < outgoing_.size(); ++rank)
    outgoing_[rank].assign(mine.begin(), rank == 0 ? mine.end() : mine.begin());
  return communicator_->all_to_all(what, outgoing_);
}

void RankTensors::gather(Backend& backend, const GatherArgs& args) {
  const bool narrow = !args.full && is_narrow(backend);
  const int64_t rows = args.whole.rows, cols = args.whole.cols;
  assert(args.mine.cols == split_.share(cols, args.unit).size());
  mine_.clear();
  append_values(mine_, args.mine.f32(), static_cast<size_t>(rows * args.mine.cols), narrow);
  const auto all = share({.tag = args.tag, .layer = args.layer, .shape = shape_of(rows, cols)},
                         mine_, args.leader_only);
  if (args.leader_only && !leads()) return;
  for (int rank = 0; rank < split_.ranks(); ++rank) {
    const Slice columns = split_.share_of(rank, cols, args.unit);
    const auto n = static_cast<size_t>(columns.size());
    const std::byte* from = all[static_cast<size_t>(rank)].data();
    for (int64_t r = 0; r < rows; ++r, from += n * value_bytes(narrow)) {
      float* to = args.whole.f32() + r * cols + columns.begin;
      read_values(from, n, narrow, [to](size_t i, float value) { to[i] = value; });
    }
  }
}

void RankTensors::embed(Backend& backend, const Weight& table, int64_t whole_rows,
                        const int32_t* tokens, int copies, Tensor x) {
  const Slice held = split_.share(whole_rows, kSplitRows);
  const bool narrow = is_narrow(backend);
  tokens_.clear();
  for (int64_t r = 0; r < x.rows; ++r)
    if (held.holds(tokens[r])) tokens_.push_back(tokens[r] - static_cast<int32_t>(held.begin));
  const Tensor mine = f32_rows(rows_, static_cast<int64_t>(tokens_.size()), table.in);
  if (mine.rows > 0) backend.embed(table, tokens_.data(), 1, mine);
  mine_.clear();
  append_values(mine_, rows_.data(), rows_.size(), narrow);
  const auto all =
      communicator_->all_gather({.tag = "embedding", .shape = shape_of(x.rows, x.cols)}, mine_);

  const auto dim = static_cast<size_t>(table.in);
  std::vector<size_t> next(all.size());  // row of each rank
  for (int64_t r = 0; r < x.rows; ++r) {
    const auto rank = static_cast<size_t>(split_.owner(tokens[r], whole_rows, kSplitRows));
    const std::byte* from = all[rank].data() + next[rank]++ * dim * value_bytes(narrow);
    float* to = x.f32() + r * x.cols;
    read_values(from, dim, narrow, [to](size_t i, float value) { to[i] = value; });
    for (int copy = 1; copy < copies; ++copy)
      std::copy_n(to, dim, to + static_cast<size_t>(copy) * dim);
  }
}

void RankTensors::experts(Backend& backend, int layer, const ExpertsArgs& args) {
  compute_shared(backend, layer, args);
  compute_routed(backend, args);

  const bool narrow = is_narrow(backend);
  const int64_t rows = args.u.rows, dim = args.out.cols, active = args.ids.cols;
  const auto experts = static_cast<int64_t>(args.routed.size());
  mine_.clear();
  append_values(mine_, pair_results_.data(), pair_results_.size(), narrow);
  append_values(mine_, shared_part_.data(), shared_part_.size(), narrow);
  const auto all = communicator_->all_gather(
      {.tag = "experts", .layer = layer, .shape = shape_of(rows, dim)}, mine_);

  // Where the next result of each rank is: ranks computed their pairs in the order of this loop.
  std::vector<const std::byte*> next;
  for (const Bytes& bytes : all) next.push_back(bytes.data());
  const auto width = static_cast<size_t>(dim);
  for (int64_t r = 0; r < rows; ++r) {
    float* out = args.out.f32() + r * dim;
    std::fill(out, out + dim, 0.0f);
    for (int64_t k = 0; k < active; ++k) {  // ids ascend
      const auto rank =
          static_cast<size_t>(split_.owner(args.ids.i32()[r * active + k], experts, 1));
      read_values(next[rank], width, narrow, [out](size_t i, float value) { out[i] += value; });
      next[rank] += width * value_bytes(narrow);
    }
  }
  for (int rank = 0; rank < split_.ranks(); ++rank) {
    const Slice columns = split_.share_of(rank, dim, kSplitRows);
    const auto n = static_cast<size_t>(columns.size());
    const std::byte* from = next[static_cast<size_t>(rank)];
    for (int64_t r = 0; r < rows; ++r, from += n * value_bytes(narrow)) {
      float* out = args.out.f32() + r * dim + columns.begin;
      read_values(from, n, narrow, [&](size_t i, float value) {
        const float sum = out[i] + value;
        out[i] = narrow ? round_bf16(sum) : sum;
      });
    }
  }
}

// This rank's columns of the shared expert's result: hidden values are put together before w2.
void RankTensors::compute_shared(Backend& backend, int layer, const ExpertsArgs& args) {
  const Expert& shared = *args.shared;
  const int64_t rows = args.u.rows;
  const Tensor a = f32_rows(hidden_part_, rows, shared.w1.out);
  if (shared.w1.out > 0) {
    const Tensor b = f32_rows(up_part_, rows, shared.w3.out);
    backend.linear(args.u, shared.w1, LinearKind::kQuantised, a);
    backend.linear(args.u, shared.w3, LinearKind::kQuantised, b);
    backend.gate(a, b);
  }
  const Tensor hidden = f32_rows(hidden_, rows, shared.w2.in);
  gather(backend,
         {.tag = "shared expert", .layer = layer, .mine = a, .whole = hidden, .unit = kSplitRows});
  const Tensor result = f32_rows(shared_part_, rows, shared.w2.out);
  if (shared.w2.out > 0) backend.linear(hidden, shared.w2, LinearKind::kQuantised, result);
}

// Each pair of a row and one of this rank's experts as a row of its own: its result is not yet
// added to others.
void RankTensors::compute_routed(Backend& backend, const ExpertsArgs& args) {
  const int64_t dim = args.u.cols, active = args.ids.cols;
  const Slice held = split_.share(static_cast<int64_t>(args.routed.size()), 1);
  pair_rows_.clear();
  pair_ids_.clear();
  pair_weights_.clear();
  for (int64_t r = 0; r < args.u.rows; ++r)
    for (int64_t k = 0; k < active; ++k) {
      const int32_t expert = args.ids.i32()[r * active + k];
      if (!held.holds(expert)) continue;
      const float* u = args.u.f32() + r * dim;
      pair_rows_.insert(pair_rows_.end(), u, u + dim);
      pair_ids_.push_back(expert - static_cast<int32_t>(held.begin));
      pair_weights_.push_back(args.weights.f32()[r * active + k]);
    }
  const auto pairs = static_cast<int64_t>(pair_ids_.size());
  const Tensor results = f32_rows(pair_results_, pairs, args.out.cols);
  if (pairs == 0) return;
  backend.experts({.u = {pair_rows_.data(), pairs, dim, Elem::kF32},
                   .ids = {pair_ids_.data(), pairs, 1, Elem::kI32},
                   .weights = {pair_weights_.data(), pairs, 1, Elem::kF32},
                   .routed = args.routed.subspan(static_cast<size_t>(held.begin),
                                                 static_cast<size_t>(held.size())),
                   .shared = nullptr,
                   .out = results});
}

// -- orders --------------------------------------------------------------------------------------

template <typename Fill>
void RankTensors::announce(OrderKind kind, Fill fill) {
  if (!leads()) return;
  const std::lock_guard lock(mutex_);
  orders_.put(kind);
  fill(orders_);
}

void RankTensors::send_orders() {
  if (!leads()) return;
  {
    const std::lock_guard lock(mutex_);
    message_ = orders_.bytes();
    orders_.clear();
  }
  communicator_->broadcast({.tag = "orders"}, /*root=*/0, message_);
}

std::span<const std::byte> RankTensors::next_orders() {
  return communicator_->broadcast({.tag = "orders"}, /*root=*/0, {});
}

void RankTensors::made_store(const StateOptions& options) {
  announce(OrderKind::kStore, [&](BytesWriter& w) {
    w.put(options.slots).put(options.max_context).put(options.page_budget_bytes);
    w.put(options.slack).put(options.rows_per_page);
  });
}

void RankTensors::applied(std::span<const PageUpdate> updates) {
  announce(OrderKind::kPages, [&](BytesWriter& w) {
    w.put(static_cast<uint64_t>(updates.size()));
    for (const PageUpdate& u : updates) {
      w.put(u.slot).put(u.source).put(u.index).put(u.page).put(u.copy_from);
      w.put_list(u.content ? std::span<const std::byte>(*u.content) : std::span<const std::byte>());
    }
  });
}

void RankTensors::loaded_recent(int slot, int64_t tokens, std::span<const std::byte> bytes) {
  announce(OrderKind::kRecent, [&](BytesWriter& w) { w.put(slot).put(tokens).put_list(bytes); });
}

void RankTensors::made_forward(int max_rows) {
  announce(OrderKind::kForward, [&](BytesWriter& w) { w.put(max_rows); });
}

void RankTensors::made_drafter(int max_rows, int max_segments) {
  announce(OrderKind::kDrafter, [&](BytesWriter& w) { w.put(max_rows).put(max_segments); });
}

void RankTensors::runs_step(const Step& step, bool with_drafter) {
  communicator_->set_step(++steps_);
  announce(OrderKind::kStep, [&](BytesWriter& w) {
    w.put(with_drafter).put(static_cast<uint64_t>(step.segments.size()));
    for (const Segment& s : step.segments) {
      w.put(s.slot).put(s.start).put(s.count).put(s.window_floor).put(s.write_floor);
      w.put(s.decoder_start).put(s.decoder_window_floor).put(s.logits);
      const auto from = static_cast<size_t>(std::max<int64_t>(0, s.start - kOrderHistory));
      const size_t count = static_cast<size_t>(s.start + s.count) - from;
      w.put_list(s.tokens.subspan(from, count));
      w.put_list(s.image.empty() ? s.image : s.image.subspan(from, count));
    }
  });
  send_orders();
}

void RankTensors::begins_drafts(std::span<const DraftSegment> segments) {
  announce(OrderKind::kDrafts, [&](BytesWriter& w) { w.put_list(segments); });
  send_orders();
}

void RankTensors::drafts_slot(int slot, std::span<const int> active,
                              std::span<const int32_t> previous) {
  announce(OrderKind::kDraftSlot,
           [&](BytesWriter& w) { w.put(slot).put_list(active).put_list(previous); });
  send_orders();
}

void RankTensors::end() {
  announce(OrderKind::kEnd, [](BytesWriter&) {});
  send_orders();
}

void RankTensors::check_kernels(const std::string& mine) {
  const auto all = communicator_->all_gather({.tag = "kernels"},
                                             std::as_bytes(std::span(mine.data(), mine.size())));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string theirs(reinterpret_cast<const char*>(all[rank].data()), all[rank].size());
    if (theirs != mine)
      fail(ErrorKind::kUnavailable,
           "rank {} computes with {}, this rank with {}: tensor-parallel ranks must compute alike",
           rank, theirs, mine);
  }
}

}  // namespace peregrine
