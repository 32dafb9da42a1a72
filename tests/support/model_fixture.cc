#include "support/model_fixture.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "formats/bf16.h"
#include "support/fixtures.h"
#include "support/test_backends.h"
#include "text/token_map.h"
#include "text/tokenizer.h"

namespace peregrine::test {

std::vector<std::string> backends() { return chosen_backends({"reference", "cpu"}); }

ModelUnderTest::ModelUnderTest(const std::string& path, const std::string& backend_name,
                               Options options)
    : ModelUnderTest(
          path,
          [&](const ModelConfig& config, Numerics numerics) {
            return make_test_backend(backend_name, config, numerics, {.threads = options.threads});
          },
          options) {}

ModelUnderTest::ModelUnderTest(const std::string& path, const MakeBackend& make, Options options)
    : checkpoint(Checkpoint::open(path)) {
  const ModelConfig& config = checkpoint.config;
  backend = make(config, Weights::numerics(*checkpoint.source));
  weights.emplace(config, *checkpoint.source, *backend);
  if (config.has_engram()) {
    if (options.token_map.empty()) {
      const Tokenizer tokenizer = Tokenizer::load(path);
      options.token_map = make_token_map(tokenizer, config.vocab_size, config.engram_pad_id,
                                         config.engram_compressed_vocab_size)
                              .ids;
    }
    hasher.emplace(config, options.token_map);
  }
  state.emplace(
      *backend, config,
      StateOptions{.slots = options.slots,
                   .max_context = options.max_context ? options.max_context : config.max_position,
                   .slack = options.slack,
                   .rows_per_page = options.rows_per_page});
  forward.emplace(*backend, config, *weights, hasher ? &*hasher : nullptr, *state,
                  options.max_rows);
}

Segment ModelUnderTest::segment(int slot, const std::vector<int32_t>& tokens, int64_t begin,
                                int64_t end) {
  return {.slot = slot,
          .start = begin,
          .count = static_cast<int>(end - begin),
          .tokens = tokens,
          .decoder_start = begin,
          .logits = static_cast<int>(end - begin)};
}

std::vector<float> ModelUnderTest::run(std::vector<Segment> segments) {
  for (const Segment& s : segments) EXPECT_TRUE(state->reserve(s.slot, s.start + s.count, s.start));
  state->apply(state->take_updates());
  forward->run(Step{std::move(segments)}, checkpoint.config.has_drafter(), where);
  return copy(forward->logits());
}

std::vector<float> ModelUnderTest::run(int slot, const std::vector<int32_t>& tokens, int64_t begin,
                                       int64_t end) {
  return run({segment(slot, tokens, begin, end)});
}

std::vector<std::byte> ModelUnderTest::global_bytes(int slot, int source, int64_t tokens) const {
  const int64_t rows = state->rows_of(source, tokens);
  std::vector<std::byte> bytes(state->global_bytes(source, 0, rows));
  state->save_global(slot, source, 0, rows, bytes.data());
  return bytes;
}

std::vector<std::byte> ModelUnderTest::state_bytes(int slot, int64_t tokens) const {
  std::vector<std::byte> all(state->recent_bytes());
  state->save_recent(slot, tokens, all.data());
  for (int source = 0; source < state->sources(); ++source) {
    const auto rows = global_bytes(slot, source, tokens);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

std::vector<float> ModelUnderTest::copy(Tensor t) const {
  std::vector<float> values(static_cast<size_t>(t.rows * t.cols));
  if (t.elem == Elem::kF32) {
    backend->copy_out(values.data(), t.data, t.bytes());
    return values;
  }
  std::vector<uint16_t> narrow(values.size());
  backend->copy_out(narrow.data(), t.data, t.bytes());
  std::transform(narrow.begin(), narrow.end(), values.begin(), bf16_value);
  return values;
}

void ModelUnderTest::put(const std::vector<float>& values, Tensor t) const {
  if (t.elem == Elem::kF32) {
    backend->copy_in(t.data, values.data(), t.bytes());
    return;
  }
  std::vector<uint16_t> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(), bf16_bits);
  backend->copy_in(t.data, narrow.data(), t.bytes());
}

std::unique_ptr<ModelUnderTest> SmallModel::open(ModelUnderTest::Options options) const {
  if (name == "engram")
    options.token_map = Fixture(checkpoint + "/expected.safetensors").ints("map.token_map");
  return std::make_unique<ModelUnderTest>(checkpoint, backend, options);
}

std::vector<SmallModel> small_models() {
  std::vector<SmallModel> all;
  for (const std::string& backend : backends()) {
    if (backend == "reference")
      all.push_back({backend, data_path("engram"), "engram"});
    else
      all.push_back({backend, model_path("tiny"), "tiny"});
  }
  return all;
}

std::vector<int32_t> random_tokens(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int32_t> id(3, 250);
  std::vector<int32_t> tokens(n);
  for (auto& token : tokens) token = id(random);
  return tokens;
}

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;  // equal infinities too
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= worst)) worst = difference;  // NaN wins
  }
  return worst;
}

int argmax(const float* row, int n) {
  return static_cast<int>(std::max_element(row, row + n) - row);
}

}  // namespace peregrine::test
