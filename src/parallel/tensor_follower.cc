#include "parallel/tensor_follower.h"

#include <algorithm>
#include <optional>

#include "cache/state_store.h"
#include "engine/model_impl.h"
#include "model/drafter.h"
#include "model/forward.h"

namespace peregrine {
namespace {

class Follower {
 public:
  explicit Follower(const Model::Impl& model) : m_(model) {
    if (m_.config().engram_max_ngram > kOrderHistory)
      fail(ErrorKind::kInvalidArgument, "n-grams of {} tokens over ranks: expected at most {}",
           m_.config().engram_max_ngram, kOrderHistory);
  }

  // False: that was the last message.
  bool obey(BytesReader orders) {
    const std::lock_guard lock(m_.device_mutex);
    while (!orders.done()) {
      switch (orders.take<OrderKind>()) {
        case OrderKind::kStore:
          make_store(orders);
          break;
        case OrderKind::kForward:
          forward_.emplace(*m_.backend, m_.config(), m_.weights, m_.engram_hasher(), *state_,
                           orders.take<int>());
          break;
        case OrderKind::kDrafter: {
          const int rows = orders.take<int>();
          drafter_.emplace(*m_.backend, m_.config(), m_.weights, *state_, rows, orders.take<int>());
          break;
        }
        case OrderKind::kPages:
          apply_pages(orders);
          break;
        case OrderKind::kRecent: {
          const int slot = orders.take<int>();
          const auto tokens = orders.take<int64_t>();
          state_->load_recent(slot, tokens, orders.take_list<std::byte>().data());
          break;
        }
        case OrderKind::kStep:
          run_step(orders);
          break;
        case OrderKind::kDrafts:
          drafter_->begin(orders.take_list<DraftSegment>());
          break;
        case OrderKind::kDraftSlot: {
          const int slot = orders.take<int>();
          const auto active = orders.take_list<int>();
          drafter_->next(slot, active, orders.take_list<int32_t>());
          break;
        }
        case OrderKind::kEnd:
          return false;
      }
    }
    return true;
  }

 private:
  struct Text {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> image;
  };

  void make_store(BytesReader& orders) {
    drafter_.reset();
    forward_.reset();
    StateOptions options;
    orders.read(options.slots);
    orders.read(options.max_context);
    orders.read(options.page_budget_bytes);
    orders.read(options.slack);
    orders.read(options.rows_per_page);
    state_.emplace(*m_.backend, m_.config(), options);
    texts_.assign(static_cast<size_t>(options.slots), {});
  }

  void apply_pages(BytesReader& orders) {
    std::vector<PageUpdate> updates(orders.take<uint64_t>());
    for (PageUpdate& u : updates) {
      orders.read(u.slot);
      orders.read(u.source);
      orders.read(u.index);
      orders.read(u.page);
      orders.read(u.copy_from);
      auto content = orders.take_list<std::byte>();
      if (!content.empty())
        u.content = std::make_shared<const std::vector<std::byte>>(std::move(content));
    }
    state_->apply(updates);
  }

  void run_step(BytesReader& orders) {
    const bool with_drafter = orders.take<bool>();
    Step step;
    step.segments.resize(orders.take<uint64_t>());
    for (Segment& s : step.segments) {
      orders.read(s.slot);
      orders.read(s.start);
      orders.read(s.count);
      orders.read(s.window_floor);
      orders.read(s.write_floor);
      orders.read(s.decoder_start);
      orders.read(s.decoder_window_floor);
      orders.read(s.logits);
      Text& text = texts_.at(static_cast<size_t>(s.slot));
      s.tokens = place(orders.take_list<int32_t>(), s.start + s.count, text.tokens);
      s.image = place(orders.take_list<uint8_t>(), s.start + s.count, text.image);
    }
    std::vector<SegmentRows> where;
    forward_->run(step, with_drafter, where);
  }

  // The last values of `all`, which then has `size` of them; those before are not read. None stay
  // none.
  template <typename T>
  static std::span<const T> place(const std::vector<T>& last, int64_t size, std::vector<T>& all) {
    if (last.empty()) return {};
    all.resize(static_cast<size_t>(size));
    std::copy(last.begin(), last.end(), all.end() - static_cast<std::ptrdiff_t>(last.size()));
    return all;
  }

  const Model::Impl& m_;
  std::optional<StateStore> state_;
  std::optional<Forward> forward_;
  std::optional<Drafter> drafter_;
  std::vector<Text> texts_;  // of the slots
};

}  // namespace

void follow_leader(const Model& model, RankTensors& group) {
  Follower follower(model.impl());
  Bytes orders;  // the steps in it have messages of their own
  do {
    const auto next = group.next_orders();
    orders.assign(next.begin(), next.end());
  } while (follower.obey(BytesReader(orders, "an order of the leading rank")));
}

}  // namespace peregrine
