#include "parallel/expert_balance.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/fail.h"
#include "engine/device.h"

namespace peregrine {

LayerExperts::Copy LayerExperts::next_copy(int expert) {
  const auto e = static_cast<size_t>(expert);
  return copies[e][turns[e]++ % copies[e].size()];
}

ExpertBalance::ExpertBalance(Communicator& communicator, std::vector<int> experts,
                             ExpertReader reader, const BalanceOptions& options)
    : communicator_(communicator),
      experts_(std::move(experts)),
      reader_(std::move(reader)),
      options_(options),
      computed_(experts_.size(), 0),
      next_(experts_.size()),
      next_weights_(experts_.size()) {
  if (options.window_steps < 1 ||
      (options.interval_steps != 0 && options.interval_steps < options.window_steps))
    fail(ErrorKind::kInvalidArgument,
         "experts re-arranged every {} steps by the counts of {}: expected at least 1 step of "
         "counts and no fewer between re-arrangements",
         options.interval_steps, options.window_steps);
  for (const int n : experts_) {
    if (options.redundant < 0 || options.redundant > n * (communicator.ranks() - 1))
      fail(ErrorKind::kInvalidArgument,
           "{} redundant copies of {} experts on {} ranks: expected 0 to {}, one copy of each "
           "expert on every rank",
           options.redundant, n, communicator.ranks(), n * (communicator.ranks() - 1));
    counts_.emplace_back(static_cast<size_t>(n), 0);
    window_.emplace_back(static_cast<size_t>(n), 0.0);
  }
}

ExpertBalance::~ExpertBalance() = default;

// Every rank has as many slots, so that what does not divide evenly is rounded up to more copies.
EplbShape ExpertBalance::shape_of(size_t layer) const {
  const int ranks = communicator_.ranks();
  const int slots = (experts_[layer] + options_.redundant + ranks - 1) / ranks;
  return {.replicas = slots * ranks, .ranks = ranks};
}

void ExpertBalance::count(int layer, std::span<const int32_t> experts) {
  auto& counts = counts_[static_cast<size_t>(layer)];
  for (const int32_t expert : experts) ++counts[static_cast<size_t>(expert)];
}

BalanceStats ExpertBalance::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// -- in a step --------------------------------------------------------------------------------

void ExpertBalance::begin_step(std::span<const uint8_t> states, std::vector<LayerExperts>& layers) {
  ++steps_;
  const bool window_ends = steps_ % options_.window_steps == 0;
  const bool plan_is_there = phase_ == Phase::kPlanning && states[0] == kPlanned;
  const bool all_moved =
      phase_ == Phase::kMoving &&
      std::all_of(states.begin(), states.end(), [](uint8_t state) { return state == kMoved; });
  if (state_ == kFailed)
    communicator_.stop_group(fmt::format("its experts cannot be re-arranged: {}", error_));
  const bool plans = options_.interval_steps > 0 && steps_ % options_.interval_steps == 0;
  if (!window_ends && !plan_is_there && !all_moved && !plans) return;

  const double begin = now_seconds();
  if (plan_is_there) receive_plan(layers);
  if (all_moved) {
    layers.resize(experts_.size());
    for (size_t l = 0; l < layers.size(); ++l)
      if (!next_[l].expert_of_slot.empty()) layers[l] = arranged(l);
    phase_ = Phase::kQuiet;
    state_ = kNothing;
  }
  if (window_ends) end_window();
  if (plans && phase_ == Phase::kQuiet && has_window_) begin_plan();
  {
    const std::lock_guard lock(mutex_);
    stats_.rearrangements += all_moved;
    stats_.stall_seconds += now_seconds() - begin;
  }
  if (all_moved && options_.on_switch) options_.on_switch(stats());
}

// Adds up the counts of all ranks.
void ExpertBalance::end_window() {
  std::vector<int64_t> mine = computed_;
  for (const auto& counts : counts_) mine.insert(mine.end(), counts.begin(), counts.end());
  const auto all = communicator_.all_gather({.tag = "expert counts", .shape = mine.size()},
                                            std::as_bytes(std::span(mine)));
  std::vector<double> slowest(experts_.size(), 0), total(experts_.size(), 0);
  for (auto& counts : window_) std::fill(counts.begin(), counts.end(), 0.0);
  for (const Bytes& bytes : all) {
    std::memcpy(mine.data(), bytes.data(), bytes.size());
    auto next = mine.begin();
    for (size_t l = 0; l < experts_.size(); ++l) {
      const auto pairs = static_cast<double>(*next++);
      slowest[l] = std::max(slowest[l], pairs);
      total[l] += pairs;
    }
    for (auto& counts : window_)
      for (double& count : counts) count += static_cast<double>(*next++);
  }
  has_window_ = true;
  std::fill(computed_.begin(), computed_.end(), 0);
  for (auto& counts : counts_) std::fill(counts.begin(), counts.end(), 0);

  for (size_t l = 0; l < slowest.size(); ++l)
    slowest[l] = total[l] > 0 ? slowest[l] * communicator_.ranks() / total[l] : 1;
  const std::lock_guard lock(mutex_);
  stats_.slowest_over_mean = std::move(slowest);
}

void ExpertBalance::begin_plan() {
  phase_ = Phase::kPlanning;
  if (communicator_.rank() != 0) return;
  run(
      [this, counts = window_](const std::stop_token&) {
        for (size_t l = 0; l < counts.size(); ++l) {
          // A layer that nobody used says nothing about where its experts should be.
          const bool used = std::accumulate(counts[l].begin(), counts[l].end(), 0.0) > 0;
          next_[l] = used ? plan_experts(counts[l], shape_of(l)) : ExpertPlacement{};
        }
      },
      kPlanned);
}

// Rank 0's plan to all ranks; each begins to read what is new to it.
void ExpertBalance::receive_plan(const std::vector<LayerExperts>& layers) {
  std::vector<int32_t> slots;
  size_t size = 0;
  for (size_t l = 0; l < experts_.size(); ++l) {
    const auto replicas = static_cast<size_t>(shape_of(l).replicas);
    size += replicas;
    if (communicator_.rank() != 0) continue;
    const auto& planned = next_[l].expert_of_slot;
    slots.insert(slots.end(), planned.begin(), planned.end());
    slots.resize(size, -1);  // an unused layer
  }
  const auto all = communicator_.all_gather({.tag = "expert placement", .shape = size},
                                            std::as_bytes(std::span(slots)));
  slots.resize(size);
  std::memcpy(slots.data(), all[0].data(), size * sizeof(int32_t));

  std::vector<Held> held(experts_.size());
  auto from = slots.begin();
  for (size_t l = 0; l < experts_.size(); ++l) {
    const EplbShape shape = shape_of(l);
    const auto end = from + shape.replicas;
    next_[l] = {};
    if (*from >= 0)
      next_[l] = {.slots_per_rank = shape.replicas / shape.ranks,
                  .expert_of_slot = {from, end},
                  .copies = {}};
    from = end;
    if (l < layers.size()) held[l] = {layers[l].expert_of_slot, layers[l].weights};
  }
  phase_ = Phase::kMoving;
  run([this, held = std::move(held)](const std::stop_token& stop) { read_new(stop, held); },
      kMoved);
}

// The layer as the next placement has it.
LayerExperts ExpertBalance::arranged(size_t layer) const {
  const ExpertPlacement& placement = next_[layer];
  const auto experts = static_cast<size_t>(experts_[layer]);
  LayerExperts made{.copies = std::vector<std::vector<LayerExperts::Copy>>(experts),
                    .expert_of_slot = {},
                    .weights = next_weights_[layer],
                    .turns = std::vector<uint32_t>(experts)};
  // Ranks begin with different copies, so that few rows are shared out evenly as well.
  std::fill(made.turns.begin(), made.turns.end(), static_cast<uint32_t>(communicator_.rank()));
  for (int slot = 0; slot < static_cast<int>(placement.expert_of_slot.size()); ++slot) {
    const int32_t expert = placement.expert_of_slot[static_cast<size_t>(slot)];
    const int rank = placement.rank_of_slot(slot);
    made.copies[static_cast<size_t>(expert)].push_back({rank, slot % placement.slots_per_rank});
    if (rank == communicator_.rank()) made.expert_of_slot.push_back(expert);
  }
  return made;
}

// -- beside the steps --------------------------------------------------------------------------

void ExpertBalance::run(std::function<void(std::stop_token)> work, State when_done) {
  state_ = kNothing;
  thread_ = std::jthread([this, work = std::move(work), when_done](const std::stop_token& stop) {
    try {
      work(stop);
      state_ = when_done;
    } catch (const std::exception& error) {
      error_ = error.what();
      state_ = kFailed;
    }
  });
}

const Expert* ExpertBalance::Held::find(int32_t expert) const {
  const auto at = std::find(expert_of_slot.begin(), expert_of_slot.end(), expert);
  return at == expert_of_slot.end() ? nullptr
                                    : &weights[static_cast<size_t>(at - expert_of_slot.begin())];
}

// `held`: what this rank has now, by layer.
void ExpertBalance::read_new(std::stop_token stop, const std::vector<Held>& held) {
  for (size_t l = 0; l < experts_.size(); ++l) {
    const ExpertPlacement& placement = next_[l];
    next_weights_[l].clear();
    for (int i = 0; i < placement.slots_per_rank; ++i) {
      if (stop.stop_requested()) return;
      const int slot = communicator_.rank() * placement.slots_per_rank + i;
      const int32_t expert = placement.expert_of_slot[static_cast<size_t>(slot)];
      if (const Expert* here = held[l].find(expert)) {
        next_weights_[l].push_back(*here);
        continue;
      }
      const ReadExpert read = reader_(static_cast<int>(l), expert);
      next_weights_[l].push_back(read.weights);
      const std::lock_guard lock(mutex_);
      ++stats_.experts_read;
      stats_.bytes_read += read.bytes;
    }
  }
}

}  // namespace peregrine
