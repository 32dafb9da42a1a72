#include "model/row_set.h"

#include <cassert>

namespace peregrine {

RowSet::RowSet(Backend& backend, int max_rows, int tables, int columns)
    : backend_(backend),
      max_rows_(max_rows),
      tables_(tables),
      columns_(columns),
      engram_stride_(static_cast<size_t>(max_rows) * static_cast<size_t>(columns)),
      engram_(static_cast<size_t>(tables)) {
  const auto n = static_cast<size_t>(max_rows);
  device_ = static_cast<int32_t*>(backend.allocate(n * (6 * sizeof(int32_t) + 2)));
  if (tables > 0)
    engram_device_ = static_cast<int64_t*>(
        backend.allocate(static_cast<size_t>(tables) * engram_stride_ * sizeof(int64_t)));
  step_.token = device_;
  step_.pos = device_ + n;
  step_.slot = device_ + 2 * n;
  step_.first_row = device_ + 3 * n;
  step_.end_row = device_ + 4 * n;
  step_.window_floor = device_ + 5 * n;
  step_.writes_kv = reinterpret_cast<uint8_t*>(device_ + 6 * n);
  step_.is_image = step_.writes_kv + n;
}

RowSet::~RowSet() {
  backend_.release(device_);
  if (engram_device_) backend_.release(engram_device_);
}

void RowSet::clear() {
  for (auto* field : {&token_, &pos_, &slot_, &first_, &end_, &floor_}) field->clear();
  writes_.clear();
  image_.clear();
  for (auto& table : engram_) table.clear();
}

void RowSet::append(const Segment& segment, int64_t begin, int64_t window_floor,
                    const EngramHasher* hasher) {
  const int64_t end = segment.start + segment.count;
  const int first = rows();
  const int last = first + static_cast<int>(end - begin);
  assert(last <= max_rows_);
  for (int64_t p = begin; p < end; ++p) {
    token_.push_back(segment.tokens[static_cast<size_t>(p)]);
    pos_.push_back(static_cast<int32_t>(p));
    slot_.push_back(segment.slot);
    first_.push_back(first);
    end_.push_back(last);
    floor_.push_back(static_cast<int32_t>(window_floor));
    writes_.push_back(p >= segment.write_floor ? 1 : 0);
    image_.push_back(segment.image.empty() ? 0 : segment.image[static_cast<size_t>(p)]);
    if (!hasher) continue;
    for (int t = 0; t < tables_; ++t) {
      auto& ids = engram_[static_cast<size_t>(t)];
      ids.resize(ids.size() + static_cast<size_t>(columns_));
      hasher->rows(t, segment.tokens, segment.image, p, ids.data() + ids.size() - columns_);
    }
  }
}

void RowSet::append(int slot, int64_t start, std::span<const int32_t> ids) {
  const int first = rows();
  const int last = first + static_cast<int>(ids.size());
  assert(last <= max_rows_);
  for (size_t i = 0; i < ids.size(); ++i) {
    token_.push_back(ids[i]);
    pos_.push_back(static_cast<int32_t>(start + static_cast<int64_t>(i)));
    slot_.push_back(slot);
    first_.push_back(first);
    end_.push_back(last);
    floor_.push_back(0);
    writes_.push_back(0);
    image_.push_back(0);
  }
}

void RowSet::upload() {
  step_.rows = rows();
  const auto n = static_cast<size_t>(step_.rows);
  const auto put = [&](const int32_t* to, const std::vector<int32_t>& from) {
    backend_.copy_in(const_cast<int32_t*>(to), from.data(), n * sizeof(int32_t));
  };
  put(step_.token, token_);
  put(step_.pos, pos_);
  put(step_.slot, slot_);
  put(step_.first_row, first_);
  put(step_.end_row, end_);
  put(step_.window_floor, floor_);
  backend_.copy_in(const_cast<uint8_t*>(step_.writes_kv), writes_.data(), n);
  backend_.copy_in(const_cast<uint8_t*>(step_.is_image), image_.data(), n);
  for (int t = 0; t < tables_; ++t) {
    const auto& ids = engram_[static_cast<size_t>(t)];
    if (!ids.empty())
      backend_.copy_in(engram_device_ + static_cast<size_t>(t) * engram_stride_, ids.data(),
                       ids.size() * sizeof(int64_t));
  }
}

}  // namespace peregrine
