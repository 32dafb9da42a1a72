// A checkpoint of tests/data or models/ with everything a forward pass needs, on a named backend.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "cache/state_store.h"
#include "checkpoint/checkpoint.h"
#include "model/engram_hash.h"
#include "model/forward.h"
#include "model/weights.h"

namespace peregrine::test {

// Backends that this build and machine have, for parameterised tests.
std::vector<std::string> backends();

struct ModelUnderTest {
  struct Options {
    int threads = 1;
    int slots = 1;
    int max_rows = 64;
    int slack = 128;
    int max_context = 0;  // 0: the config's
    int rows_per_page = 64;
    std::vector<int32_t> token_map;  // Engram: given by a fixture; empty: from the tokenizer
  };
  ModelUnderTest(const std::string& checkpoint_path, const std::string& backend_name,
                 Options options);
  // On a backend of the test's own; `options.threads` says nothing to it.
  using MakeBackend = std::function<std::unique_ptr<Backend>(const ModelConfig&, Numerics)>;
  ModelUnderTest(const std::string& checkpoint_path, const MakeBackend& make, Options options);
  ModelUnderTest(const std::string& checkpoint_path, const std::string& backend_name)
      : ModelUnderTest(checkpoint_path, backend_name, Options{}) {}

  Checkpoint checkpoint;
  std::unique_ptr<Backend> backend;
  std::optional<Weights> weights;
  std::optional<EngramHasher> hasher;
  std::optional<StateStore> state;
  std::optional<Forward> forward;

  // Runs positions begin .. end - 1 of `tokens` in `slot` as one step (exact mode) and returns
  // their logits, row by row.
  std::vector<float> run(int slot, const std::vector<int32_t>& tokens, int64_t begin, int64_t end);
  // Reserves pages, runs the segments as one step and returns the logits of all of them.
  std::vector<float> run(std::vector<Segment> segments);
  std::vector<SegmentRows> where;  // of the last step

  // A segment over positions begin .. end - 1 in exact mode, all logits wanted.
  static Segment segment(int slot, const std::vector<int32_t>& tokens, int64_t begin, int64_t end);

  // Every byte that decides how `slot` goes on after `tokens` positions: rings and unfinished
  // groups, then the global rows of all sources.
  std::vector<std::byte> state_bytes(int slot, int64_t tokens) const;
  std::vector<std::byte> global_bytes(int slot, int source, int64_t tokens) const;

  // Values of an f32 or bf16 tensor.
  std::vector<float> copy(Tensor t) const;
  void put(const std::vector<float>& values, Tensor t) const;
};

// A backend and a checkpoint that it runs in milliseconds a token: the scalar backend gets a
// fixture with Engram (window 16), fast ones models/tiny (window 64), which has every component.
struct SmallModel {
  std::string backend;
  std::string checkpoint;  // full path
  std::string name;        // for the test's name

  bool scalar() const { return backend == "reference"; }
  // `options.token_map` is filled in where the checkpoint needs one.
  std::unique_ptr<ModelUnderTest> open(ModelUnderTest::Options options) const;
};
std::vector<SmallModel> small_models();

// `n` ids that every small model has.
std::vector<int32_t> random_tokens(size_t n, uint32_t seed);

// Largest absolute difference; fails the test when sizes differ or a value is not finite on one
// side only.
double max_difference(const std::vector<float>& a, const std::vector<float>& b);

int argmax(const float* row, int n);

}  // namespace peregrine::test
