#include "support/backend_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "formats/bf16.h"
#include "support/test_backends.h"

namespace peregrine::test {

std::vector<std::string> test_devices() { return chosen_backends({"reference", "cpu"}); }

ModelConfig kernel_config() {
  ModelConfig config;
  config.dim = 64;
  config.n_heads = 4;
  config.head_dim = 64;
  config.rope_head_dim = 32;
  config.window_size = 8;
  config.norm_eps = 1e-20f;
  config.moe_inter_dim = 32;
  config.n_routed_experts = 8;
  config.n_activated_experts = 2;
  config.route_scale = 1.5f;
  config.index_n_heads = 8;
  config.index_head_dim = 64;
  config.index_topk = 6;
  config.candidate_topk_blocks = 3;
  config.candidate_block_size = 3;
  config.hc_mult = 4;
  config.hc_sinkhorn_iters = 20;
  config.hc_eps = 1e-6f;
  return config;
}

Step::Step(const std::vector<Segment>& segments) {
  for (const Segment& segment : segments) {
    const int32_t first = static_cast<int32_t>(pos_.size());
    for (int i = 0; i < segment.rows; ++i) {
      token_.push_back(0);
      pos_.push_back(segment.pos + i);
      slot_.push_back(segment.slot);
      first_.push_back(first);
      end_.push_back(first + segment.rows);
      floor_.push_back(segment.window_floor);
      writes_.push_back(segment.writes_kv ? 1 : 0);
      image_.push_back(0);
    }
  }
}

StepRows Step::view() const {
  return {.rows = static_cast<int>(pos_.size()),
          .token = token_.data(),
          .pos = pos_.data(),
          .slot = slot_.data(),
          .first_row = first_.data(),
          .end_row = end_.data(),
          .window_floor = floor_.data(),
          .writes_kv = writes_.data(),
          .is_image = image_.data()};
}

Rig::Rig(const std::string& device, Numerics numerics, const ModelConfig& config)
    : Rig(make_test_backend(device, config, numerics, {.threads = 2})) {}

Rig::Rig(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

Rig::~Rig() {
  for (void* block : blocks_) backend_->release(block);
}

template <typename T>
T* Rig::put(const T* values, size_t n) {
  void* data = backend_->allocate(std::max<size_t>(n, 1) * sizeof(T));
  blocks_.push_back(data);
  if (values != nullptr) backend_->copy_in(data, values, n * sizeof(T));
  return static_cast<T*>(data);
}

Tensor Rig::make(int64_t rows, int64_t cols, Elem elem) {
  Tensor tensor{nullptr, rows, cols, elem};
  tensor.data = put<uint8_t>(nullptr, tensor.bytes());
  return tensor;
}

Tensor Rig::act(const std::vector<float>& values, int64_t rows) {
  if (backend_->act_elem() == Elem::kF32) return full(values, rows);
  std::vector<uint16_t> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(), bf16_bits);
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {put(narrow.data(), narrow.size()), rows, cols, Elem::kBF16};
}

Tensor Rig::full(const std::vector<float>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {put(values.data(), values.size()), rows, cols, Elem::kF32};
}

const float* Rig::vector(const std::vector<float>& values) {
  return put(values.data(), values.size());
}
const uint8_t* Rig::bytes(const std::vector<uint8_t>& values) {
  return put(values.data(), values.size());
}
const int64_t* Rig::longs(const std::vector<int64_t>& values) {
  return put(values.data(), values.size());
}
Tensor Rig::ints(const std::vector<int32_t>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {put(values.data(), values.size()), rows, cols, Elem::kI32};
}

Weight Rig::weight(const Fixture& fixture, const std::string& name) {
  const TensorView& view = fixture.view(name);
  Weight weight{.out = view.shape.at(0), .in = view.shape.at(1)};
  switch (view.dtype) {
    case DType::kF32:
      weight.format = WeightFormat::kF32;
      break;
    case DType::kBF16:
      weight.format = WeightFormat::kBF16;
      break;
    case DType::kF8E4M3:
      weight.format = WeightFormat::kF8;
      break;
    default:
      weight.format = WeightFormat::kF4;
      weight.in *= 2;
  }
  weight.data = bytes(fixture.bytes(name));
  if (fixture.has(name + "_scale")) weight.scale = bytes(fixture.bytes(name + "_scale"));
  return weight;
}

Weight Rig::weight(const std::vector<float>& values, int64_t out) {
  return {.format = WeightFormat::kF32,
          .out = out,
          .in = static_cast<int64_t>(values.size()) / out,
          .data = vector(values)};
}

Weight Rig::random_weight(WeightFormat format, int64_t out, int64_t in, std::mt19937& random) {
  Weight weight{.format = format, .out = out, .in = in};
  if (format == WeightFormat::kF32) {
    weight.data = vector(random_values(static_cast<size_t>(out * in), random));
    return weight;
  }
  std::vector<uint8_t> data(weight.data_bytes());
  if (format == WeightFormat::kBF16) {
    for (size_t i = 0; i < data.size(); i += 2) {
      const uint16_t bits = bf16_bits(random_values(1, random).front());
      std::memcpy(&data[i], &bits, 2);
    }
  } else {
    for (uint8_t& code : data) {
      code = static_cast<uint8_t>(random());
      if (format == WeightFormat::kF8 && (code & 0x7F) == 0x7F) code = 0;
    }
  }
  weight.data = bytes(data);
  std::vector<uint8_t> scales(weight.scale_bytes());
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(117 + random() % 8);
  weight.scale = bytes(scales);
  return weight;
}

std::vector<float> Rig::floats(Tensor tensor) {
  backend_->synchronize();
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.cols));
  if (tensor.elem == Elem::kF32) {
    backend_->copy_out(values.data(), tensor.data, tensor.bytes());
    return values;
  }
  std::vector<uint16_t> narrow(values.size());
  backend_->copy_out(narrow.data(), tensor.data, tensor.bytes());
  std::transform(narrow.begin(), narrow.end(), values.begin(), bf16_value);
  return values;
}

std::vector<int32_t> Rig::ints(Tensor tensor) {
  backend_->synchronize();
  std::vector<int32_t> values(static_cast<size_t>(tensor.rows * tensor.cols));
  backend_->copy_out(values.data(), tensor.data, tensor.bytes());
  return values;
}

std::vector<uint8_t> Rig::bytes(Tensor tensor) {
  backend_->synchronize();
  std::vector<uint8_t> values(tensor.bytes());
  backend_->copy_out(values.data(), tensor.data, values.size());
  return values;
}

StepRows Rig::step(const Step& step) {
  StepRows rows = step.view();
  const auto n = static_cast<size_t>(rows.rows);
  rows.token = put(rows.token, n);
  rows.pos = put(rows.pos, n);
  rows.slot = put(rows.slot, n);
  rows.first_row = put(rows.first_row, n);
  rows.end_row = put(rows.end_row, n);
  rows.window_floor = put(rows.window_floor, n);
  rows.writes_kv = put(rows.writes_kv, n);
  rows.is_image = put(rows.is_image, n);
  return rows;
}

Selection Rig::selection(int64_t rows, int capacity) {
  return {.rows = make(rows, capacity, Elem::kI32).i32(),
          .count = make(rows, 1, Elem::kI32).i32(),
          .capacity = capacity};
}

std::vector<std::vector<int32_t>> Rig::lists(const Selection& selection, int64_t rows) {
  const std::vector<int32_t> counts = ints(Tensor{selection.count, rows, 1, Elem::kI32});
  const std::vector<int32_t> all =
      ints(Tensor{selection.rows, rows, selection.capacity, Elem::kI32});
  std::vector<std::vector<int32_t>> lists;
  for (int64_t r = 0; r < rows; ++r) {
    const auto first = all.begin() + r * selection.capacity;
    lists.emplace_back(first, first + counts[static_cast<size_t>(r)]);
  }
  return lists;
}

KvView make_kv(Rig& rig, const ModelConfig& config, const KvShape& shape) {
  const int head_dim = config.head_dim;
  KvView kv;
  kv.ring_layers = 1;
  kv.ring_rows = shape.ring_rows > 0 ? shape.ring_rows : config.window_size + 8;
  kv.window = config.window_size;
  kv.window_row_bytes = static_cast<size_t>(head_dim + head_dim / 32);
  kv.rings = rig.make(shape.slots * kv.ring_layers * kv.ring_rows,
                      static_cast<int64_t>(kv.window_row_bytes), Elem::kU8)
                 .u8();

  kv.rows_per_page = shape.rows_per_page;
  kv.main_row_bytes = static_cast<size_t>(head_dim / 2 + head_dim / 16);
  kv.index_row_bytes = static_cast<size_t>(config.index_head_dim / 2 + config.index_head_dim / 32);
  kv.page_bytes = static_cast<size_t>(kv.rows_per_page) * (kv.main_row_bytes + kv.index_row_bytes);
  kv.sources = shape.sources;
  kv.max_pages = (shape.max_rows + kv.rows_per_page - 1) / kv.rows_per_page;
  const int pages = shape.slots * kv.sources * kv.max_pages;
  kv.pages = rig.make(pages, static_cast<int64_t>(kv.page_bytes), Elem::kU8).u8();
  std::vector<int32_t> table(static_cast<size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  std::reverse(table.begin(), table.end());
  kv.page_table = rig.ints(table, 1).i32();

  kv.tail_rows = shape.tail_rows;
  kv.head_dim = head_dim;
  kv.tails = rig.make(shape.slots * kv.sources * kv.tail_rows, 2 * head_dim).f32();
  return kv;
}

std::vector<float> random_values(size_t n, std::mt19937& random, float spread) {
  std::vector<float> values(n);
  // Sum of uniforms: close enough to normal, and the same numbers on every platform.
  for (float& value : values) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(random() % 65536) / 65536.0f - 0.5f;
    value = sum * 1.7f * spread;
  }
  return values;
}

std::vector<float> random_bf16(size_t n, std::mt19937& random, float spread) {
  std::vector<float> values = random_values(n, random, spread);
  for (float& value : values) value = round_bf16(value);
  return values;
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                 float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    // Written so that a NaN on either side fails.
    const bool near = std::fabs(actual[i] - expected[i]) <= tolerance;
    ASSERT_TRUE(near) << "element " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

void expect_same_bits(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << "element " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

}  // namespace peregrine::test
