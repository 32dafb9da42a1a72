#include "engine/scheduler.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "base/fail.h"

namespace peregrine {
namespace {

// Where in an ordered container the sequence belongs.
template <typename Container>
void insert_ordered(Container& into, std::unique_ptr<Sequence> sequence) {
  // From the back: most arrive in order.
  auto at = into.end();
  while (at != into.begin() && sequence->before(**std::prev(at))) --at;
  into.insert(at, std::move(sequence));
}

}  // namespace

Scheduler::Scheduler(StateStore& state, PrefixCache& cache, const Options& options,
                     StateSaver* saver)
    : state_(state),
      cache_(cache),
      options_(options),
      saver_(saver),
      by_slot_(static_cast<size_t>(state.options().slots), nullptr) {}

Sequence* Scheduler::owner(const RowGroup& group) const {
  Sequence* s = by_slot_[static_cast<size_t>(group.slot)];
  return s && s->id == group.sequence && s->generation == group.generation ? s : nullptr;
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  insert_ordered(waiting_, std::move(sequence));
}

Sequence* Scheduler::find(RequestId id) {
  for (const auto& s : running_)
    if (s->id == id) return s.get();
  for (const auto& s : waiting_)
    if (s->id == id) return s.get();
  return nullptr;
}

void Scheduler::for_each(const std::function<void(Sequence&)>& visit) {
  for (const auto& s : running_) visit(*s);
  for (const auto& s : waiting_) visit(*s);
}

bool Scheduler::plan(int64_t number, int mixed_rows, StepPlan& plan, bool prefill) {
  plan.clear();
  short_of_pages_ = false;
  saver_holds_pages_ = saver_ && saver_->release_done();
  plan.draft_row_budget = options_.draft_row_budget;
  int rows_left = options_.max_step_tokens;
  // Indices, because preemption shortens the list behind the one being planned.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    if (s.state == SequenceState::kRunning && !s.will_finish() &&
        plan_decode(s, plan, rows_left, number))
      rows_left -= plan.groups.back().max_rows;
  }
  int chunk = prefill ? std::min(rows_left, plan.groups.empty() ? rows_left : mixed_rows) : 0;
  for (size_t i = 0; i < running_.size() && chunk > 0; ++i)
    if (running_[i]->state == SequenceState::kPrefilling)
      chunk -= plan_prefill(*running_[i], plan, chunk, number);
  while (chunk > 0 && admit_next()) {
    const auto newest = std::find_if(running_.begin(), running_.end(), [](const auto& s) {
      return s->state == SequenceState::kPrefilling && s->planned == s->prefill_from;
    });
    if (newest == running_.end()) break;
    const int used = plan_prefill(**newest, plan, chunk, number);
    if (used == 0) break;
    chunk -= used;
  }
  // Without a step the updates wait for the next one.
  if (plan.groups.empty()) return false;
  plan.page_updates = state_.take_updates();
  return true;
}

bool Scheduler::wants_prefill() const {
  return !waiting_.empty() || std::any_of(running_.begin(), running_.end(), [](const auto& s) {
    return s->state == SequenceState::kPrefilling && s->planned < s->prefill_to;
  });
}

bool Scheduler::decoding() const {
  return std::any_of(running_.begin(), running_.end(),
                     [](const auto& s) { return s->state == SequenceState::kRunning; });
}

RowGroup Scheduler::group_of(Sequence& s, GroupKind kind, int64_t number, const StepPlan& plan) {
  RowGroup group;
  group.kind = kind;
  group.slot = s.slot;
  group.sequence = s.id;
  group.generation = s.generation;
  group.remap = s.inflight_steps > 0 && s.last_step == number - 1 ? s.last_group : -1;
  s.last_step = number;
  s.last_group = static_cast<int>(plan.groups.size());
  ++s.inflight_steps;
  return group;
}

bool Scheduler::plan_decode(Sequence& s, StepPlan& plan, int rows_left, int64_t number) {
  const int64_t reach = s.computed + s.inflight_tokens;  // positions it may have by then
  int rows = 1 + (options_.drafts ? s.request.draft.drafts : 0);
  rows = static_cast<int>(std::min<int64_t>(rows, options_.context_tokens - reach));
  // Too close to the end of the context to plan without the results, or no rows left.
  if (rows < 1 || rows > rows_left) return false;
  if (!make_room(reach + rows, s.computed, s)) return false;
  RowGroup group = group_of(s, GroupKind::kDecode, number, plan);
  group.max_rows = rows;
  s.inflight_tokens += rows;
  plan.groups.push_back(std::move(group));
  return true;
}

int Scheduler::plan_prefill(Sequence& s, StepPlan& plan, int rows_left, int64_t number) {
  if (s.planned >= s.prefill_to) return 0;  // waiting for results
  if (!fill_imported_pages(s, !plan.groups.empty())) return 0;
  const int64_t begin = s.planned;
  const int64_t end = std::min(s.prefill_to, begin + rows_left);
  if (!make_room(end, std::max(begin, s.write_floor), s)) return 0;
  const bool first = begin == s.prefill_from;
  RowGroup group = group_of(s, GroupKind::kPrefill, number, plan);
  group.start = begin;
  group.count = static_cast<int>(end - begin);
  group.last = end == s.prefill_to;
  group.window_floor = s.window_floor;
  group.write_floor = s.write_floor;
  group.decoder_start = std::clamp(s.decoder_start, begin, end);
  group.decoder_floor = s.decoder_floor;
  if (first) {
    const Request& r = s.request;
    auto setup = std::make_shared<SequenceSetup>();
    setup->tokens.assign(s.tokens.begin(), s.tokens.begin() + s.prefill_to);
    setup->prompt_length = s.prompt_length();
    setup->max_tokens = r.max_tokens;
    setup->context_tokens = options_.context_tokens;
    if (s.output_length() > 0) setup->anchor = s.tokens.back();
    setup->sampling = r.sampling;
    setup->seed = s.seed;
    setup->draft = r.draft;
    group.setup = std::move(setup);
  }
  if (group.last) s.state = SequenceState::kRunning;
  s.planned = end;
  s.inflight_tokens += end - begin;
  const int used = group.count;
  plan.groups.push_back(std::move(group));
  return used;
}

// -- room ----------------------------------------------------------------------------------------

// Reserves pages for positions below `tokens`: free ones, then cached prefixes, then those of later
// arrivals. False when the sequence must wait, be it for pages that steps in flight still hold.
bool Scheduler::make_room(int64_t tokens, int64_t writable_from, Sequence& wanting) {
  if (state_.reserve(wanting.slot, tokens, writable_from)) return true;
  const int64_t missing = state_.missing_pages(wanting.slot, tokens, writable_from);
  if (cache_.evict(missing) >= missing && state_.reserve(wanting.slot, tokens, writable_from))
    return true;
  short_of_pages_ = true;
  if (releases_.empty() && !saver_holds_pages_) preempt_for(wanting);
  return false;
}

bool Scheduler::holds_pages(const Sequence& s) const {
  for (int source = 0; source < state_.sources(); ++source)
    if (!state_.pages(s.slot, source).empty()) return true;
  return false;
}

// Victim: the latest arrival of the lowest priority, if it comes after the one in need.
bool Scheduler::preempt_for(Sequence& wanting) {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    Sequence& victim = **it;
    if (!wanting.before(victim)) return false;
    if (!holds_pages(victim)) continue;
    ++preemptions_;
    ++victim.usage.preemptions;
    give_up_slot(victim, 0);
    auto owned = std::move(*it);
    running_.erase(std::next(it).base());
    owned->state = SequenceState::kWaiting;
    insert_ordered(waiting_, std::move(owned));
    return true;
  }
  return false;
}

void Scheduler::give_up_slot(Sequence& s, int64_t keep) {
  releases_.push_back(
      {.slot = s.slot,
       .step = s.last_step,
       .tokens = keep > 0 ? std::vector<int32_t>(s.tokens.begin(), s.tokens.begin() + keep)
                          : std::vector<int32_t>(),
       .keep = keep,
       .exact = s.exact,
       .rings = keep - options_.window + 1 >= s.decoder_floor,
       .on_state = keep > 0 ? std::move(s.request.on_state) : nullptr});
  by_slot_[static_cast<size_t>(s.slot)] = nullptr;
  s.slot = -1;
  ++s.generation;  // results still in flight are not this stay's any more
  s.inflight_steps = 0;
  s.inflight_tokens = 0;
}

std::unique_ptr<Sequence> Scheduler::remove(Sequence& s, bool keep) {
  const auto take = [&](auto& from) {
    const auto at = std::find_if(from.begin(), from.end(),
                                 [&](const auto& other) { return other.get() == &s; });
    std::unique_ptr<Sequence> owned;
    if (at == from.end()) return owned;
    owned = std::move(*at);
    from.erase(at);
    return owned;
  };
  if (s.slot >= 0) {
    // When the last step it is in has run: all planned prompt positions, or what is known of its
    // decoding. The rings reach back from there, not from an earlier length.
    const int64_t known = std::min<int64_t>(std::max(s.computed, s.planned),
                                            static_cast<int64_t>(s.tokens.size()) - 1);
    // No step says yet that the device has been given imported pages.
    keep &= !(s.imported && s.planned == s.prefill_from);
    give_up_slot(s, keep ? known : 0);
  }
  s.state = SequenceState::kFinished;
  auto owned = take(running_);
  return owned ? std::move(owned) : take(waiting_);
}

void Scheduler::cache_prompt(const Sequence& s) {
  // One position short of the end, so that the same prompt can use it and still compute its logits.
  const int64_t length = s.prefill_to - 1;
  if (length < options_.window || s.slot < 0 || !cache_.enabled()) return;
  std::vector<std::byte> recent(state_.recent_bytes());
  state_.save_recent(s.slot, length, recent.data());
  cache_.insert({.tokens = s.tokens,
                 .length = length,
                 .slot = s.slot,
                 .exact = s.exact,
                 .recent = std::move(recent)});
}

bool Scheduler::release_until(int64_t completed) {
  return std::erase_if(releases_, [&](DeferredRelease& r) {
           if (r.step > completed) return false;
           const bool gives = r.on_state && saver_;
           if (r.keep >= options_.window && (cache_.enabled() || gives)) {
             // A prefill that was cut short in replay mode has global rows to offer, but no decoder
             // rings.
             std::vector<std::byte> recent(r.rings ? state_.recent_bytes() : 0);
             if (r.rings) state_.save_recent(r.slot, r.keep, recent.data());
             if (gives) saver_->save(r.slot, r.tokens, r.exact, recent, std::move(r.on_state));
             cache_.insert({.tokens = r.tokens,
                            .length = r.keep,
                            .slot = r.slot,
                            .exact = r.exact,
                            .recent = std::move(recent)});
           }
           state_.release(r.slot);
           return true;
         }) > 0;
}

void Scheduler::forget_unsaved() {
  for (DeferredRelease& r : releases_) r.keep = 0;
}

// -- admission -----------------------------------------------------------------------------------

// A prompt that another sequence is reading right now is worth waiting for: its end will be cached.
bool Scheduler::shares_running_prefill(const Sequence& s) const {
  if (!cache_.enabled()) return false;
  return std::any_of(running_.begin(), running_.end(), [&](const auto& other) {
    if (other->state != SequenceState::kPrefilling) return false;
    const auto& a = s.tokens;
    const auto& b = other->tokens;
    return a.size() >= b.size() && static_cast<int64_t>(b.size()) > 2 * options_.window &&
           std::equal(b.begin(), b.end(), a.begin());
  });
}

bool Scheduler::admit_next() {
  if (waiting_.empty() || running() >= options_.max_running || short_of_pages_) return false;
  const Sequence& next = *waiting_.front();
  if (shares_running_prefill(next)) return false;
  // Reading a prompt only to be preempted helps nobody: its pages must be there or evictable.
  const int64_t wanted = state_.pages_for(static_cast<int64_t>(next.tokens.size()) + kMaxDrafts);
  if (!running_.empty() && wanted > state_.pool().free_pages() + cache_.pages()) return false;
  const int slot = state_.acquire();
  if (slot < 0) return false;  // one is about to be released
  auto s = std::move(waiting_.front());
  waiting_.pop_front();
  s->slot = slot;
  by_slot_[static_cast<size_t>(slot)] = s.get();
  begin_stay(*s);
  insert_ordered(running_, std::move(s));
  return true;
}

// A replay computes the window again; an exact point that is not much shorter is cheaper and
// better.
Scheduler::Start Scheduler::choose_start(int64_t exact_length, int64_t replay_length) const {
  if (exact_length > 0 && exact_length + options_.window >= replay_length)
    return {.hit = exact_length, .replay = false};
  if (replay_length > options_.window) return {.hit = replay_length, .replay = true};
  return {};
}

int64_t Scheduler::first_position(const Start& start) const {
  return start.replay ? start.hit - options_.window : start.hit;
}

int64_t Scheduler::cached_tokens(std::span<const int32_t> prompt) {
  const PrefixHit found = cache_.lookup(prompt, static_cast<int64_t>(prompt.size()) - 1);
  return choose_start(found.exact_length, found.replay_length).hit;
}

// Gives the slot pages for the request's state from elsewhere if that saves more than the cache
// does; their content follows with the first chunk.
bool Scheduler::attach_import(Sequence& s, const Start& cached, Start& start) {
  if (!s.import) return false;
  StatePages& import = *s.import;
  const int64_t limit = std::min(import.common, s.prefill_to - 1);
  const bool point = !import.recent.empty() && import.length <= limit;
  start = options_.replay_imports ? choose_start(point ? import.length : 0, limit)
          : point && import.exact ? Start{.hit = import.length, .replay = false}
                                  : Start{};
  if (first_position(start) <= first_position(cached)) return false;
  cache_.evict(state_.missing_pages(s.slot, start.hit, start.hit));
  if (!state_.reserve(s.slot, start.hit, start.hit)) return false;
  const auto beyond = [&](const StatePages::Page& page) {
    return page.index >= std::ssize(state_.pages(s.slot, page.source));
  };
  std::erase_if(import.pages, beyond);
  if (!start.replay) state_.load_recent(s.slot, start.hit, import.recent.data());
  s.imported = true;
  return true;
}

// Hands pages of the state to the device, while others decode only so many a step. True: all are.
bool Scheduler::fill_imported_pages(Sequence& s, bool in_pieces) {
  if (!s.imported || !s.import) return true;
  constexpr size_t kPieceBytes = size_t{8} << 20;
  auto& pages = s.import->pages;
  size_t count = pages.size();
  if (in_pieces) count = std::min(count, std::max<size_t>(1, kPieceBytes / state_.page_bytes()));
  for (size_t i = 0; i < count; ++i, pages.pop_back())
    state_.fill_page(s.slot, pages.back().source, pages.back().index,
                     std::move(pages.back().content));
  if (!pages.empty()) return false;
  s.import.reset();
  return true;
}

// Where the stay's prefill starts: behind the longest usable cached prefix (prefill.md section 6).
void Scheduler::begin_stay(Sequence& s) {
  const int64_t window = options_.window;
  // After a preemption the last token is the anchor, which decoding will process.
  s.prefill_to = static_cast<int64_t>(s.tokens.size()) - (s.output_length() > 0 ? 1 : 0);
  s.prefill_from = 0;
  s.window_floor = s.write_floor = 0;
  s.exact = true;
  int64_t hit = 0;
  bool replayed = false;
  s.imported = false;
  const PrefixHit found = cache_.lookup(s.tokens, s.prefill_to - 1);
  const Start cached = choose_start(found.exact_length, found.replay_length);
  if (Start start; attach_import(s, cached, start)) {
    hit = start.hit;
    replayed = start.replay;
    s.prefill_from = first_position(start);
    s.window_floor = replayed ? s.prefill_from : 0;
    s.exact = s.import->exact && !replayed;
  } else if (cached.hit > 0 && !cached.replay &&
             cache_.attach(s.tokens, found.exact_length, true, s.slot)) {
    hit = found.exact_length;
    s.prefill_from = hit;
    s.exact = found.rows_exact;
  } else if (found.replay_length > window &&
             cache_.attach(s.tokens, found.replay_length, false, s.slot)) {
    hit = found.replay_length;
    replayed = true;
    s.prefill_from = hit - window;
    s.window_floor = s.prefill_from;
    s.exact = false;
  }
  if (!s.imported) s.import.reset();  // of no use, or no longer
  s.write_floor = hit;
  // Cut by the prompt's length, not by what was generated since: a preempted sequence then computes
  // the same bits again.
  const bool cut =
      options_.prefill == PrefillMode::kReplay && s.prompt_length() - s.prefill_from > window;
  s.decoder_start = cut ? s.prompt_length() - window : s.prefill_from;
  s.decoder_floor = cut || replayed ? s.decoder_start : 0;
  s.planned = s.prefill_from;
  s.computed = hit;
  s.usage.cached_tokens = std::max(s.usage.cached_tokens, std::min(hit, s.prompt_length()));
  s.state = SequenceState::kPrefilling;
}

std::string Scheduler::check_integrity() const {
  std::vector<int32_t> counts(static_cast<size_t>(state_.pool().capacity()), 0);
  cache_.count_references(counts);
  if (saver_) saver_->count_references(counts);
  const auto count_slot = [&](int slot) {
    for (int source = 0; source < state_.sources(); ++source)
      for (const int32_t page : state_.pages(slot, source)) ++counts[static_cast<size_t>(page)];
  };
  int slots = 0;
  for (const auto& s : running_) {
    if (s->slot < 0) return fmt::format("request {} runs without a slot", s->id);
    count_slot(s->slot);
    ++slots;
  }
  for (const auto& r : releases_) {
    count_slot(r.slot);
    ++slots;
  }
  for (const auto& s : waiting_)
    if (s->slot >= 0) return fmt::format("request {} waits but holds slot {}", s->id, s->slot);
  if (slots + state_.free_slots() != state_.options().slots)
    return fmt::format("{} slots in use and {} free of {}", slots, state_.free_slots(),
                       state_.options().slots);
  for (size_t page = 0; page < counts.size(); ++page)
    if (counts[page] != state_.pool().references(static_cast<int32_t>(page)))
      return fmt::format("page {} has {} references, its owners hold {}", page,
                         state_.pool().references(static_cast<int32_t>(page)), counts[page]);
  return {};
}

}  // namespace peregrine
