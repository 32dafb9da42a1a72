#include "engine/state_saver.h"

#include <algorithm>
#include <utility>

namespace peregrine {
namespace {

constexpr size_t kMostWaiting = 64;

}  // namespace

StateSaver::StateSaver(StateStore& state, const StateShape& shape) : state_(state), shape_(shape) {
  thread_ = std::thread([this] { run(); });
}

StateSaver::~StateSaver() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
  for (const auto& job : held_) release(*job);
}

void StateSaver::save(int slot, std::vector<int32_t> tokens, bool exact,
                      std::vector<std::byte> recent, Receiver receiver) {
  if (held_.size() >= kMostWaiting) return;
  const auto length = static_cast<int64_t>(tokens.size());
  auto job = std::make_shared<Job>();
  job->tokens = std::move(tokens);
  job->exact = exact;
  job->recent = std::move(recent);
  job->receiver = std::move(receiver);
  const int64_t rows_per_page = state_.options().rows_per_page;
  for (int source = 0; source < state_.sources(); ++source) {
    const auto needed = (state_.rows_of(source, length) + rows_per_page - 1) / rows_per_page;
    const auto own = state_.pages(slot, source).first(static_cast<size_t>(needed));
    job->pages.emplace_back(own.begin(), own.end());
  }
  for (const auto& pages : job->pages)
    for (const int32_t page : pages) state_.pool().add_reference(page);
  held_.push_back(job);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(job));
  }
  work_.notify_one();
}

void StateSaver::release(const Job& job) {
  for (const auto& pages : job.pages)
    for (const int32_t page : pages) state_.pool().release(page);
}

bool StateSaver::release_done() {
  if (held_.empty()) return false;
  const std::lock_guard lock(mutex_);
  std::erase_if(held_, [this](const auto& job) {
    if (job->copied) release(*job);
    return job->copied;
  });
  return !held_.empty();
}

void StateSaver::count_references(std::span<int32_t> counts) const {
  for (const auto& job : held_)
    for (const auto& pages : job->pages)
      for (const int32_t page : pages) ++counts[static_cast<size_t>(page)];
}

std::shared_ptr<const SavedState> StateSaver::copy(Job& job) const {
  auto saved = std::make_shared<SavedState>();
  const auto length = static_cast<int64_t>(job.tokens.size());
  saved->exact = job.exact;
  saved->recent = std::move(job.recent);
  const int64_t rows_per_page = state_.options().rows_per_page;
  for (size_t source = 0; source < shape_.sources.size(); ++source) {
    const StateShape::Source& s = shape_.sources[source];
    const int64_t rows = shape_.rows(source, length);
    SavedState::Source& out = saved->sources.emplace_back();
    out.main.resize(static_cast<size_t>(rows) * s.main_row_bytes);
    out.index.resize(static_cast<size_t>(rows) * s.index_row_bytes);
    for (int64_t row = 0; row < rows; row += rows_per_page)
      state_.save_rows(job.pages[source][static_cast<size_t>(row / rows_per_page)],
                       std::min(rows_per_page, rows - row),
                       out.main.data() + static_cast<size_t>(row) * s.main_row_bytes,
                       out.index.data() + static_cast<size_t>(row) * s.index_row_bytes);
  }
  saved->tokens = std::move(job.tokens);
  return saved;
}

void StateSaver::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::shared_ptr<Job> job = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    std::shared_ptr<const SavedState> saved = copy(*job);
    lock.lock();
    job->copied = true;
    Receiver receiver = std::move(job->receiver);
    lock.unlock();
    receiver(std::move(saved));
    receiver = nullptr;
    lock.lock();
  }
}

}  // namespace peregrine
