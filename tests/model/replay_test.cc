// Prefill with decoder replay (spec: prefill.md): layers from the last KV source on run only over
// the last window of the prompt, their window attention cut where it starts.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/fixtures.h"
#include "support/model_fixture.h"

namespace peregrine::test {
namespace {

class Replay : public ::testing::TestWithParam<SmallModel> {
 protected:
  Replay()
      : owned_(GetParam().open({.slots = 2, .max_rows = 256, .max_context = 512})),
        model_(*owned_),
        window_(model_.checkpoint.config.window_size),
        tokens_(random_tokens(static_cast<size_t>(3 * window_), 21)) {}

  // Prompt of `length` tokens in slot 1, `chunk` rows a step; logits of the last token.
  std::vector<float> replay(int64_t length, int64_t chunk) {
    model_.state->truncate(1, 0);
    const int64_t floor = std::max<int64_t>(0, length - window_);
    std::vector<float> logits;
    for (int64_t at = 0; at < length; at += chunk) {
      Segment s = ModelUnderTest::segment(1, tokens_, at, std::min(at + chunk, length));
      const int64_t end = s.start + s.count;
      s.decoder_start = std::clamp(floor, s.start, end);
      s.decoder_window_floor = floor;
      s.logits = end == length ? 1 : 0;
      logits = model_.run({s});
    }
    return logits;
  }
  // The same in exact mode, in slot 0.
  std::vector<float> exact(int64_t length) {
    model_.state->truncate(0, 0);
    Segment s = ModelUnderTest::segment(0, tokens_, 0, length);
    s.logits = 1;
    return model_.run({s});
  }
  // The last window of one layer's ring.
  std::vector<uint8_t> ring(int slot, int layer, int64_t length) const {
    const KvView& kv = model_.state->view();
    std::vector<uint8_t> bytes;
    for (int64_t p = std::max<int64_t>(0, length - window_); p < length; ++p) {
      const uint8_t* row = kv.ring_row(slot, layer, p);
      bytes.insert(bytes.end(), row, row + kv.window_row_bytes);
    }
    return bytes;
  }

  std::unique_ptr<ModelUnderTest> owned_;
  ModelUnderTest& model_;
  int64_t window_;
  std::vector<int32_t> tokens_;
};

TEST_P(Replay, ShortPromptsAreExact) {
  for (const int64_t length : {int64_t{1}, int64_t{2}, window_ - 1, window_}) {
    const auto want = exact(length);
    const auto state = model_.state_bytes(0, length);
    for (const int64_t chunk : {length, int64_t{7}}) {
      EXPECT_EQ(replay(length, chunk), want) << length << " tokens, chunk " << chunk;
      EXPECT_EQ(model_.state_bytes(1, length), state) << length << " tokens, chunk " << chunk;
    }
  }
}

TEST_P(Replay, EncoderRingsAndGlobalRowsAreExact) {
  const int split = model_.checkpoint.config.first_decoder_layer();
  for (const int64_t length : {window_ + 1, 2 * window_ + 9}) {
    exact(length);
    replay(length, 50);
    for (int layer = 0; layer < split; ++layer)
      EXPECT_EQ(ring(1, layer, length), ring(0, layer, length)) << "layer " << layer;
    for (int source = 0; source < model_.state->sources(); ++source)
      EXPECT_EQ(model_.global_bytes(1, source, length), model_.global_bytes(0, source, length))
          << "source " << source;
    // The cut must show where it can: the oldest decoder rows saw fewer keys.
    const int last = model_.checkpoint.config.n_layers - 1;
    EXPECT_NE(ring(1, last, length), ring(0, last, length));
  }
}

TEST_P(Replay, AnyChunkingGivesTheSameBits) {
  const int64_t length = 2 * window_ + 9;
  const auto whole = replay(length, length);
  const auto state = model_.state_bytes(1, length);
  for (const int64_t chunk : {1, 7, 16, 50, 64, 100}) {
    EXPECT_EQ(replay(length, chunk), whole) << "chunk " << chunk;
    EXPECT_EQ(model_.state_bytes(1, length), state) << "chunk " << chunk;
  }
}

// The decoder's rows depend on the last window alone for their window keys: rings filled by what
// came before the cut must not show.
TEST_P(Replay, NothingBelowTheCutIsRead) {
  const int64_t length = window_ + 30;
  const auto clean = replay(length, 40);
  const auto state = model_.state_bytes(1, length);
  model_.run(1, tokens_, 0, length);  // exact: fills every decoder ring from position 0
  EXPECT_EQ(replay(length, 40), clean);
  EXPECT_EQ(model_.state_bytes(1, length), state);
}

INSTANTIATE_TEST_SUITE_P(Backends, Replay, ::testing::ValuesIn(small_models()),
                         [](const auto& info) {
                           return info.param.backend + "_" + info.param.name;
                         });

}  // namespace
}  // namespace peregrine::test
