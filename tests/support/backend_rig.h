// A backend with helpers that put test data into its memory and read results back, so that one
// test runs on every host backend of the build.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "support/fixtures.h"

namespace peregrine::test {

// The devices to test: "reference" and "cpu", or those of chosen_backends().
std::vector<std::string> test_devices();

// Settings of the kernels fixture; tests change what they need.
ModelConfig kernel_config();

// Consecutive rows of one sequence.
struct Segment {
  int slot = 0;
  int pos = 0;
  int rows = 0;
  int window_floor = 0;
  bool writes_kv = true;
};

// Owns the arrays of a StepRows.
class Step {
 public:
  explicit Step(const std::vector<Segment>& segments);
  StepRows view() const;

 private:
  std::vector<int32_t> token_, pos_, slot_, first_, end_, floor_;
  std::vector<uint8_t> writes_, image_;
};

class Rig {
 public:
  Rig(const std::string& device, Numerics numerics, const ModelConfig& config = kernel_config());
  explicit Rig(std::unique_ptr<Backend> backend);
  ~Rig();

  Backend& operator*() { return *backend_; }
  Backend* operator->() { return backend_.get(); }

  // Zeroed matrices.
  Tensor make(int64_t rows, int64_t cols, Elem elem = Elem::kF32);
  Tensor make_act(int64_t rows, int64_t cols) { return make(rows, cols, backend_->act_elem()); }
  // An act matrix of these values.
  Tensor act(const std::vector<float>& values, int64_t rows);
  // An f32 matrix, whatever the activation type.
  Tensor full(const std::vector<float>& values, int64_t rows);
  const float* vector(const std::vector<float>& values);
  const uint8_t* bytes(const std::vector<uint8_t>& values);
  const int64_t* longs(const std::vector<int64_t>& values);
  Tensor ints(const std::vector<int32_t>& values, int64_t rows);
  // A stored weight: `name`, with `name` + "_scale" beside it for F8 and packed F4.
  Weight weight(const Fixture& fixture, const std::string& name);
  Weight weight(const std::vector<float>& values, int64_t out);  // F32
  // Random stored weights; F8 and F4 get codes without NaN and scales near one.
  Weight random_weight(WeightFormat format, int64_t out, int64_t in, std::mt19937& random);

  std::vector<float> floats(Tensor tensor);
  std::vector<int32_t> ints(Tensor tensor);
  std::vector<uint8_t> bytes(Tensor tensor);

  StepRows step(const Step& step);
  Selection selection(int64_t rows, int capacity);
  // The lists of a selection.
  std::vector<std::vector<int32_t>> lists(const Selection& selection, int64_t rows);

 private:
  template <typename T>
  T* put(const T* values, size_t n);

  std::unique_ptr<Backend> backend_;
  std::vector<void*> blocks_;
};

// State of `slots` sequences for one source and one ring layer, pages in a scrambled order.
struct KvShape {
  int slots = 2;
  int sources = 1;
  int max_rows = 64;  // compressed rows of a source
  int rows_per_page = 4;
  int ring_rows = 0;
  int tail_rows = 8;
};
KvView make_kv(Rig& rig, const ModelConfig& config, const KvShape& shape);

std::vector<float> random_values(size_t n, std::mt19937& random, float spread = 1);
// Rounded to bf16, as activations are.
std::vector<float> random_bf16(size_t n, std::mt19937& random, float spread = 1);

// Element by element: |actual - expected| <= tolerance.
void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                 float tolerance);
// Bit patterns.
void expect_same_bits(const std::vector<float>& actual, const std::vector<float>& expected);

// What the kernels fixture states for everything computed in f32.
inline constexpr float kF32Tolerance = 2e-5f;

}  // namespace peregrine::test
