#include "support/model_fixture.h"

#include <algorithm>
#include <cmath>

#include "text/token_map.h"
#include "text/tokenizer.h"

namespace peregrine::test {

std::vector<std::string> backends() { return {"reference"}; }

ModelUnderTest::ModelUnderTest(const std::string& path, const std::string& backend_name,
                               Options options)
    : checkpoint(Checkpoint::open(path)) {
  const ModelConfig& config = checkpoint.config;
  backend = make_backend(backend_name, config, Weights::numerics(*checkpoint.source),
                         {.threads = options.threads});
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
                   .slack = options.slack});
  forward.emplace(*backend, config, *weights, hasher ? &*hasher : nullptr, *state,
                  options.max_rows);
}

std::vector<float> ModelUnderTest::run(int slot, const std::vector<int32_t>& tokens, int64_t begin,
                                       int64_t end) {
  EXPECT_TRUE(state->reserve(slot, end, begin));
  state->apply(state->take_updates());
  Step step;
  step.segments.push_back({.slot = slot,
                           .start = begin,
                           .count = static_cast<int>(end - begin),
                           .tokens = tokens,
                           .decoder_start = begin,
                           .logits = static_cast<int>(end - begin)});
  std::vector<SegmentRows> where;
  forward->run(step, checkpoint.config.has_drafter(), where);
  return copy(forward->logits());
}

std::vector<float> ModelUnderTest::copy(Tensor t) const {
  std::vector<float> values(static_cast<size_t>(t.rows * t.cols));
  backend->copy_out(values.data(), t.data, values.size() * sizeof(float));
  return values;
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
