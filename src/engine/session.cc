#include "peregrine/session.h"

#include <algorithm>
#include <cassert>

#include "base/fail.h"
#include "engine/session_impl.h"
#include "peregrine/generation.h"

namespace peregrine {
namespace {

constexpr size_t kActivationBudget = size_t{40} << 20;
constexpr int kLeastRollback = 32;  // more than the longest draft block and its anchor

SessionOptions fill_defaults(const Model& model, SessionOptions o) {
  const ModelConfig& c = model.impl().config();
  if (o.context_tokens == 0) o.context_tokens = c.max_position;
  if (o.context_tokens < 1 || o.context_tokens > c.max_position)
    fail(ErrorKind::kInvalidArgument, "context of {} tokens: this model holds 1 to {}",
         o.context_tokens, c.max_position);
  if (o.chunk_tokens == 0) {
    const auto rows = static_cast<int>(kActivationBudget / Workspace::bytes_per_row(c));
    o.chunk_tokens = std::clamp(rows / 16 * 16, 16, 512);
  }
  if (o.chunk_tokens < 1)
    fail(ErrorKind::kInvalidArgument, "prefill chunk of {} tokens: expected at least 1",
         o.chunk_tokens);
  if (o.rollback_tokens < kLeastRollback)
    fail(ErrorKind::kInvalidArgument, "rollback of {} tokens: expected at least {}",
         o.rollback_tokens, kLeastRollback);
  if (o.draft_rows < 0 || o.draft_rows > kMaxDrafts)
    fail(ErrorKind::kInvalidArgument, "draft block of {}: expected 0 to {}", o.draft_rows,
         kMaxDrafts);
  if (!c.has_drafter()) o.draft_rows = 0;
  // No step and no rollback is longer than the context.
  o.chunk_tokens = std::min(o.chunk_tokens, o.context_tokens);
  o.rollback_tokens = std::min(o.rollback_tokens, std::max(kLeastRollback, o.context_tokens));
  return o;
}

}  // namespace

Session::Impl::Impl(std::shared_ptr<const Model> shared, const SessionOptions& wanted)
    : model(std::move(shared)),
      options(fill_defaults(*model, wanted)),
      state(backend(), config(),
            {.slots = 1,
             .max_context = options.context_tokens,
             .slack = options.rollback_tokens,
             .observer = model->impl().weights.tensors}),
      forward(backend(), config(), model->impl().weights, model->impl().engram_hasher(), state,
              std::max(options.chunk_tokens, options.draft_rows + 1)),
      slot(state.acquire()) {
  if (options.draft_rows > 0)
    drafter.emplace(backend(), config(), model->impl().weights, state, options.draft_rows, 1);
}

void Session::Impl::check_tokens(std::span<const int32_t> ids, size_t base) const {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab())
      fail(ErrorKind::kInvalidArgument, "token id {} at position {}: expected 0 to {}", ids[i],
           base + i, vocab() - 1);
  if (static_cast<int64_t>(base + ids.size()) > options.context_tokens)
    fail(ErrorKind::kInvalidArgument, "{} tokens do not fit the context of {} tokens",
         base + ids.size(), options.context_tokens);
}

void Session::Impl::reset() {
  state.truncate(slot, 0);
  tokens.clear();
  high_water = rollback_floor = decoder_floor = 0;
  logits_valid = false;
}

void Session::Impl::truncate(int64_t length) {
  assert(length >= rollback_floor && length <= static_cast<int64_t>(tokens.size()));
  tokens.resize(static_cast<size_t>(length));
  state.truncate(slot, length);
  logits_valid = false;
}

void Session::Impl::grow_to(int64_t length) {
  high_water = std::max(high_water, length);
  rollback_floor = std::max(rollback_floor, high_water - options.rollback_tokens);
}

void Session::Impl::run(const Run& what) {
  const std::lock_guard lock(model->impl().device_mutex);
  if (!state.reserve(slot, what.end, what.begin))
    fail(ErrorKind::kOutOfMemory, "KV cache: no free pages for {} tokens", what.end);
  state.apply(state.take_updates());
  // A floor below every row's window hides nothing; 0 keeps both halves on the same rows.
  const int64_t lowest_visible = what.decoder_start - config().window_size + 1;
  Step step;
  step.segments.push_back(
      {.slot = slot,
       .start = what.begin,
       .count = static_cast<int>(what.end - what.begin),
       .tokens = tokens,
       .decoder_start = what.decoder_start,
       .decoder_window_floor = decoder_floor > lowest_visible ? decoder_floor : 0,
       .logits = what.logits});
  std::vector<SegmentRows> where;
  forward.run(step, drafter.has_value(), where);
  logits.resize(static_cast<size_t>(what.logits) * static_cast<size_t>(vocab()));
  if (what.logits > 0) {
    backend().copy_out(logits.data(), forward.logits().data, logits.size() * sizeof(float));
    logits_valid = true;
  }
  grow_to(what.end);
}

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;

const std::vector<int32_t>& Session::tokens() const { return impl_->tokens; }
int64_t Session::length() const { return static_cast<int64_t>(impl_->tokens.size()); }
int64_t Session::rollback_floor() const { return impl_->rollback_floor; }

SyncResult Session::sync(std::span<const int32_t> prefix,
                         const std::function<bool(int64_t, int64_t)>& keep_going) {
  Impl& s = *impl_;
  if (prefix.empty())
    fail(ErrorKind::kInvalidArgument, "empty prompt: expected at least one token");
  s.check_tokens(prefix, 0);
  std::vector<int32_t> wanted(prefix.begin(), prefix.end());  // `prefix` may be of tokens() itself

  const auto total = static_cast<int64_t>(prefix.size());
  const auto mismatch =
      std::mismatch(prefix.begin(), prefix.end(), s.tokens.begin(), s.tokens.end());
  int64_t keep = mismatch.first - prefix.begin();
  if (keep == total && keep == length() && s.logits_valid) return {.kept = keep};
  keep = std::min(keep, total - 1);  // the last position must run for its logits
  if (keep < s.rollback_floor) {
    s.reset();
    keep = 0;
  } else {
    s.truncate(keep);
  }
  s.tokens = std::move(wanted);

  // Replay: only the last window runs through the decoder, unless its rings are continued anyway.
  const int64_t window = s.config().window_size;
  const bool replay = s.options.prefill == PrefillMode::kReplay && total - keep > window;
  const int64_t decoder_start = replay ? total - window : keep;
  if (replay) s.decoder_floor = decoder_start;
  SyncResult result{.kept = keep};
  for (int64_t begin = keep; begin < total;) {
    const int64_t end = std::min(total, begin + s.options.chunk_tokens);
    const bool last = end == total;
    s.run({.begin = begin,
           .end = end,
           .decoder_start = std::clamp(decoder_start, begin, end),
           .logits = last ? 1 : 0});
    result.computed += end - begin;
    begin = end;
    if (keep_going && !keep_going(end - keep, total - keep) && !last) {
      // A replay prefill without its decoder part is no state to continue from.
      if (replay) {
        s.reset();
      } else {
        s.tokens.resize(static_cast<size_t>(end));
      }
      result.complete = false;
      break;
    }
  }
  // Decoder rings start at the replayed window: nothing before its end can be queried again.
  if (replay && result.complete) s.rollback_floor = std::max(s.rollback_floor, total);
  return result;
}

std::span<const float> Session::logits() const {
  if (!impl_->logits_valid) return {};
  return std::span<const float>(impl_->logits).last(static_cast<size_t>(impl_->vocab()));
}

std::span<const float> Session::step(int32_t token) { return append(std::span(&token, 1)); }

std::span<const float> Session::append(std::span<const int32_t> tokens) {
  Impl& s = *impl_;
  if (tokens.empty())
    fail(ErrorKind::kInvalidArgument, "append of no tokens: expected at least one");
  if (static_cast<int>(tokens.size()) > s.forward.max_rows())
    fail(ErrorKind::kInvalidArgument, "append of {} tokens: one step takes at most {}",
         tokens.size(), s.forward.max_rows());
  s.check_tokens(tokens, s.tokens.size());
  const int64_t begin = length();
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  s.run({.begin = begin,
         .end = length(),
         .decoder_start = begin,
         .logits = static_cast<int>(tokens.size())});
  return s.logits;
}

void Session::truncate(int64_t length) {
  Impl& s = *impl_;
  if (length < s.rollback_floor || length > this->length())
    fail(ErrorKind::kInvalidArgument,
         "truncate to {} tokens: the state of {} tokens can go back to {} at the earliest", length,
         this->length(), s.rollback_floor);
  s.truncate(length);
}

uint64_t Session::kv_bytes() const {
  return static_cast<uint64_t>(impl_->state.kv_bytes_in_use()) + impl_->state.slot_bytes();
}
uint64_t Session::scratch_bytes() const {
  return Workspace::bytes_per_row(impl_->config()) *
         static_cast<uint64_t>(impl_->forward.max_rows());
}

}  // namespace peregrine
