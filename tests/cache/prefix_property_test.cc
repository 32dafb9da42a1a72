// The prefix cache, used as the engine does, against a plain list of what was inserted: what it
// finds, the bytes it gives back, and the balance of page references after every call.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "cache/cache_rig.h"
#include "cache/prefix_cache.h"
#include "checkpoint/temporary_directory.h"

namespace peregrine::test {
namespace {

enum Kind { kStart = 0, kKeep = 6, kAbandon = 8, kEvict = 9, kClear = 10, kKinds = 11 };

struct Operation {
  int kind = 0;
  size_t which = 0;  // the earlier sequence this one starts like, or the one to finish
  size_t cut = 0;    // for how long; pages to evict
  Tokens more;
};

std::ostream& operator<<(std::ostream& out, const Operation& op) {
  return out << op.kind << " " << op.which << " " << op.cut << " +" << op.more.size();
}

rc::Gen<std::vector<Operation>> operations() {
  const auto tokens = rc::gen::container<Tokens>(rc::gen::inRange<int32_t>(0, 3));
  const auto one =
      rc::gen::build<Operation>(rc::gen::set(&Operation::kind, rc::gen::inRange<int>(0, kKinds)),
                                rc::gen::set(&Operation::which, rc::gen::inRange<size_t>(0, 1000)),
                                rc::gen::set(&Operation::cut, rc::gen::inRange<size_t>(0, 60)),
                                rc::gen::set(&Operation::more, tokens));
  return rc::gen::container<std::vector<Operation>>(one);
}

int64_t common(const Tokens& a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first -
         a.begin();
}

struct Limits {
  int pages = 0;  // 0: enough
  bool evicts = false;
  size_t restart_every = 0;  // operations; 0: never
};

class Player {
 public:
  Player(const PrefixCacheOptions& options, const Limits& limits)
      : options_(options), limits_(limits), rig_(limits.pages) {
    cache_ = std::make_unique<PrefixCache>(rig_.state(), options_);
  }

  void play(const std::vector<Operation>& script) {
    size_t played = 0;
    for (const Operation& op : script) {
      if (op.kind < kKeep) {
        start(sequence_of(op));
      } else if (op.kind < kEvict) {
        finish(op.which, op.kind < kAbandon);
      } else if (limits_.evicts) {
        if (op.kind == kEvict) evict(static_cast<int64_t>(op.cut));
        if (op.kind == kClear && op.which % 8 == 0) cache_->clear();
      }
      if (limits_.restart_every > 0 && ++played % limits_.restart_every == 0) {
        cache_.reset();
        cache_ = std::make_unique<PrefixCache>(rig_.state(), options_);
      }
      check_books();
    }
    while (!running_.empty()) finish(0, true);
    check_books();
    RC_ASSERT(cache_->spill_stats().failures == 0);
    cache_.reset();
    RC_ASSERT(rig_.state().pool().used_pages() == 0);
  }

  int64_t hits() const { return hits_; }

 private:
  struct Running {
    int slot = -1;
    Tokens tokens;
    bool exact = true;
  };
  using Rows = std::vector<std::vector<std::byte>>;
  struct Saved {
    Rows rows[2];
    std::vector<std::byte> recent;
    bool exact = true;
  };

  Tokens sequence_of(const Operation& op) const {
    Tokens tokens;
    if (!seen_.empty()) tokens = seen_[op.which % seen_.size()];
    tokens.resize(std::min(tokens.size(), op.cut));
    tokens = joined(tokens, op.more);
    tokens.resize(std::min<size_t>(tokens.size(), 90));
    return tokens;
  }

  Rows rows(int slot, int source, int64_t length) {
    Rows rows;
    for (int64_t r = 0; r < rig_.state().rows_of(source, length); ++r) {
      rows.emplace_back(rig_.state().global_bytes(source, r, r + 1));
      rig_.state().save_global(slot, source, r, r + 1, rows.back().data());
    }
    return rows;
  }

  void start(const Tokens& tokens) {
    StateStore& state = rig_.state();
    const auto length = static_cast<int64_t>(tokens.size());
    if (length < 2 || state.free_slots() == 0) return;
    const PrefixHit hit = cache_->lookup(tokens, length - 1);
    check_hit(hit, tokens, length - 1);

    Running run{.slot = state.acquire(), .tokens = tokens};
    const bool exact = hit.exact_length > 0 && (hit.replay_length == 0 || length % 3 != 0);
    int64_t from = exact ? hit.exact_length : hit.replay_length;
    if (from > 0) {
      run.exact = exact && hit.rows_exact;
      if (cache_->attach(tokens, from, exact, run.slot)) {
        rig_.apply();
        check_attached(run, from, exact);
        ++hits_;
      } else {
        RC_ASSERT(limits_.evicts && state.pages(run.slot, 1).empty());  // no room to read it back
        from = 0;
        run.exact = true;
      }
    }
    if (const int64_t missing = state.missing_pages(run.slot, length, from); missing > 0)
      if (!limits_.evicts || cache_->evict(missing) < missing) return state.release(run.slot);
    RC_ASSERT(state.reserve(run.slot, length, from));
    rig_.apply();
    rig_.compute(run.slot, tokens, from, length, run.exact ? 0 : ++salt_);
    seen_.push_back(tokens);
    save(run, length - 1);  // as at the end of a prompt
    running_.push_back(std::move(run));
  }

  void finish(size_t which, bool keep) {
    if (running_.empty()) return;
    const auto at = running_.begin() + static_cast<ptrdiff_t>(which % running_.size());
    if (keep) save(*at, static_cast<int64_t>(at->tokens.size()));
    rig_.state().release(at->slot);
    running_.erase(at);
  }

  void save(const Running& run, int64_t length) {
    rig_.save(*cache_, run.tokens, length, run.slot, run.exact);
    if (!run.exact && options_.mode == PrefixCacheMode::kExact) return;
    Saved saved{.recent = rig_.recent(run.slot, length), .exact = run.exact};
    for (int source = 0; source < 2; ++source) saved.rows[source] = rows(run.slot, source, length);
    list_[Tokens(run.tokens.begin(), run.tokens.begin() + length)].push_back(std::move(saved));
  }

  void evict(int64_t pages) {
    const PagePool& pool = rig_.state().pool();
    const int before = pool.free_pages();
    const int64_t freed = cache_->evict(pages);
    RC_ASSERT(freed == pool.free_pages() - before);
    if (freed >= pages) return;
    std::vector<int32_t> counts(static_cast<size_t>(pool.capacity()), 0);
    cache_->count_references(counts);
    for (size_t page = 0; page < counts.size(); ++page)
      RC_ASSERT(counts[page] == 0 || counts[page] < pool.references(static_cast<int32_t>(page)));
  }

  void check_hit(const PrefixHit& hit, const Tokens& tokens, int64_t limit) const {
    int64_t exact = 0, replay = 0;
    const auto asked = std::span(tokens).first(static_cast<size_t>(limit));
    for (const auto& [key, saved] : list_) {
      const int64_t same = common(key, asked);
      replay = std::max(replay, same);
      if (same == static_cast<int64_t>(key.size())) exact = std::max(exact, same);
    }
    if (options_.mode == PrefixCacheMode::kExact) replay = 0;
    RC_ASSERT(hit.exact_length <= exact);
    RC_ASSERT(hit.replay_length <= replay);
    if (limits_.evicts) return;
    RC_ASSERT(hit.exact_length == exact);
    RC_ASSERT(hit.replay_length == replay);
  }

  // The slot holds what one and the same insert saved.
  void check_attached(const Running& run, int64_t length, bool exact) {
    const Rows got[2] = {rows(run.slot, 0, length), rows(run.slot, 1, length)};
    const auto starts_with = [](const Rows& all, const Rows& start) {
      return all.size() >= start.size() && std::equal(start.begin(), start.end(), all.begin());
    };
    const auto recent = rig_.recent(run.slot, length);
    bool rows_found = false, recent_found = false;
    for (const auto& [key, saved] : list_) {
      if (common(key, std::span(run.tokens).first(static_cast<size_t>(length))) < length) continue;
      for (const Saved& s : saved) {
        const bool same = starts_with(s.rows[0], got[0]) && starts_with(s.rows[1], got[1]);
        rows_found = rows_found || (same && (!run.exact || s.exact));
        if (std::ssize(key) == length)
          recent_found = recent_found || (same && s.exact == run.exact && s.recent == recent);
      }
    }
    RC_ASSERT(rows_found);
    if (exact) RC_ASSERT(recent_found);
  }

  void check_books() {
    std::vector<int> slots;
    for (const Running& run : running_) slots.push_back(run.slot);
    rig_.expect_balance(cache_.get(), slots);
    RC_ASSERT(cache_->recent_bytes() <= options_.recent_budget_bytes);
    RC_ASSERT(cache_->spill_stats().bytes <= options_.spill_budget_bytes);
  }

  const PrefixCacheOptions options_;
  const Limits limits_;
  CacheRig rig_;
  std::unique_ptr<PrefixCache> cache_;
  uint64_t salt_ = 0;
  int64_t hits_ = 0;
  std::vector<Running> running_;
  std::vector<Tokens> seen_;
  std::map<Tokens, std::vector<Saved>> list_;
};

// Plays random scripts; most must find something, or the test says nothing.
void check(const char* what, const PrefixCacheOptions& options, const Limits& limits) {
  int64_t hits = 0;
  const bool passed = rc::check(what, [&] {
    PrefixCacheOptions own = options;
    const TemporaryDirectory directory;
    if (own.spill_budget_bytes > 0) own.spill_dir = directory.path();
    Player player(own, limits);
    player.play(*operations());
    hits += player.hits();
  });
  EXPECT_TRUE(passed);
  EXPECT_GT(hits, 100);
}

constexpr uint64_t kRecent = 8 * 16 * 66 + 2 * 2 * 64 * 4;  // bytes of a recent part of the rig

TEST(PrefixProperty, ExactModeFindsWhatTheListHolds) {
  check("exact", {.mode = PrefixCacheMode::kExact}, {});
}
TEST(PrefixProperty, ReplayModeFindsWhatTheListHolds) {
  check("replay", {.mode = PrefixCacheMode::kReplay}, {});
}
TEST(PrefixProperty, ExactModeUnderPressure) {
  check("exact, short of pages",
        {.mode = PrefixCacheMode::kExact, .recent_budget_bytes = 4 * kRecent},
        {.pages = 60, .evicts = true});
}
TEST(PrefixProperty, ReplayModeUnderPressure) {
  check("replay, short of pages",
        {.mode = PrefixCacheMode::kReplay, .recent_budget_bytes = 3 * kRecent},
        {.pages = 60, .evicts = true});
}
TEST(PrefixProperty, ExactModeWithFilesLosesNothing) {
  check("exact, files",
        {.mode = PrefixCacheMode::kExact,
         .recent_budget_bytes = 2 * kRecent,
         .spill_budget_bytes = uint64_t{1} << 30},
        {.restart_every = 5});
}
TEST(PrefixProperty, ReplayModeWithFilesLosesNothing) {
  check("replay, files",
        {.mode = PrefixCacheMode::kReplay,
         .recent_budget_bytes = 2 * kRecent,
         .spill_budget_bytes = uint64_t{1} << 30},
        {.restart_every = 5});
}
TEST(PrefixProperty, ReplayModeWithFewFilesUnderPressure) {
  check("replay, few files",
        {.mode = PrefixCacheMode::kReplay,
         .recent_budget_bytes = 2 * kRecent,
         .spill_budget_bytes = 12 * kRecent},
        {.pages = 60, .evicts = true, .restart_every = 7});
}

}  // namespace
}  // namespace peregrine::test
