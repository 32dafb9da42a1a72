// Images of states: the same state comes back, a prefix needs its own bytes only, and bytes that
// are not an image are refused with a reason.
#include "kvshare/state_image.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "kvshare/state_rig.h"
#include "peregrine/error.h"
#include "support/leading_part.h"

namespace peregrine::test {
namespace {

constexpr uint64_t kBlock = StateManifest::kBlockBytes;

std::vector<std::byte> manifest_bytes(const StateImage& image) {
  const auto head = image.bytes().first(image.manifest().manifest_bytes());
  return {head.begin(), head.end()};
}

// Reads from `from` what a prefix needs, as a peer or a file would give it; checks every piece.
StateImage read_prefix(const StateImage& from, int64_t prefix, uint64_t piece_bytes = kBlock) {
  StateImage image = StateImage::of_manifest(manifest_bytes(from));
  const auto ranges = image.manifest().ranges(prefix);
  for (const ByteRange& piece : StateManifest::split(ranges, piece_bytes)) {
    const auto bytes = from.part(piece);
    EXPECT_TRUE(image.manifest().intact(piece, bytes));
    std::copy(bytes.begin(), bytes.end(), image.room(piece).begin());
  }
  image.set_held(prefix);
  return image;
}

TEST(StateImage, GivesBackTheState) {
  const StateShape shape = small_shape();
  for (const int64_t tokens : {1, 2, 777, 4096}) {
    for (const bool with_recent : {true, false}) {
      SavedState state = random_state(shape, tokens, 7, with_recent);
      state.exact = with_recent;
      const StateImage image = StateImage::build(state, shape);
      EXPECT_EQ(image.manifest().misfit(shape), "");
      EXPECT_TRUE(image.is_complete());
      expect_same(image.state(tokens), state);
      expect_same(read_prefix(image, tokens).state(tokens), state);
    }
  }
}

TEST(StateImage, LayoutIsTheDocumentedOne) {
  const StateShape shape = small_shape();
  const SavedState state = random_state(shape, 5, 3);
  const StateImage image = StateImage::build(state, shape);
  const auto bytes = image.bytes();
  const auto word = [&](size_t at, size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, size);
    return value;
  };
  EXPECT_EQ(std::memcmp(bytes.data(), "PGRNKVST", 8), 0);
  EXPECT_EQ(word(8, 4), 1u);
  EXPECT_EQ(word(12, 4), 1u);
  EXPECT_EQ(word(16, 1), 0x5au);
  EXPECT_EQ(word(48, 8), 5u);
  EXPECT_EQ(word(56, 4), 2u);
  EXPECT_EQ(word(60, 4), 262144u);
  EXPECT_EQ(word(64, 8), 5000u);
  const uint64_t manifest = 88 + 2 * 24 + 5 * 4 + 5 * 32 + 32;
  EXPECT_EQ(word(72, 8), manifest);
  EXPECT_EQ(word(80, 8), bytes.size());
  EXPECT_EQ(word(88, 4), 2u);
  EXPECT_EQ(word(96, 8), 288u);
  EXPECT_EQ(word(104, 8), 68u);
  EXPECT_EQ(static_cast<int32_t>(word(136, 4)), state.tokens[0]);
  EXPECT_EQ(std::memcmp(bytes.data() + 156, blake3_digest(state.sources[0].main).data(), 32), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + manifest - 32,
                        blake3_digest(bytes.first(manifest - 32)).data(), 32),
            0);
  // Five sections of less than a page each but the last, which takes two.
  EXPECT_EQ(bytes.size(), 4096u * (1 + 4 + 2));
  EXPECT_EQ(std::memcmp(bytes.data() + 4096, state.sources[0].main.data(), 2 * 288), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 4 * 4096, state.sources[1].index.data(), 5 * 20), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 5 * 4096, state.recent.data(), 5000), 0);
}

TEST(StateImage, CommonPrefix) {
  const StateShape shape = small_shape();
  const StateImage image = StateImage::build(random_state(shape, 50, 1), shape);
  auto tokens = image.manifest().tokens();
  EXPECT_EQ(image.manifest().common_prefix(tokens), 50);
  tokens.push_back(3);
  EXPECT_EQ(image.manifest().common_prefix(tokens), 50);
  tokens.resize(20);
  EXPECT_EQ(image.manifest().common_prefix(tokens), 20);
  tokens[7] = tokens[7] + 1;
  EXPECT_EQ(image.manifest().common_prefix(tokens), 7);
  EXPECT_EQ(image.manifest().common_prefix({}), 0);
}

RC_GTEST_PROP(StateImageProperty, PrefixReadsItsOwnBytesAndNoMoreThanABlockASection, ()) {
  const StateShape shape = small_shape();
  const int64_t length = *rc::gen::inRange<int64_t>(1, 9000);
  const int64_t prefix = *rc::gen::inRange<int64_t>(1, length + 1);
  const uint64_t piece = kBlock * *rc::gen::inRange<uint64_t>(1, 4);
  const SavedState state = random_state(shape, length, 5);
  const StateImage image = StateImage::build(state, shape);

  uint64_t read = 0;
  for (const ByteRange& range : image.manifest().ranges(prefix)) read += range.bytes;
  const uint64_t needed =
      shape.row_bytes(prefix) + (prefix == length ? shape.recent_bytes : uint64_t{0});
  RC_ASSERT(read >= needed);
  RC_ASSERT(read < needed + 5 * kBlock);

  const SavedState part = read_prefix(image, prefix, piece).state(prefix);
  const SavedState expected = leading_part(state, shape, prefix);
  RC_ASSERT(part.tokens == expected.tokens);
  RC_ASSERT(part.recent == expected.recent);
  for (size_t i = 0; i < expected.sources.size(); ++i) {
    RC_ASSERT(part.sources[i].main == expected.sources[i].main);
    RC_ASSERT(part.sources[i].index == expected.sources[i].index);
  }
}

TEST(StateImage, AnyFlippedBitOfAPartIsFound) {
  const StateShape shape = small_shape();
  const StateImage image = StateImage::build(random_state(shape, 3000, 2), shape);
  const auto ranges = image.manifest().ranges(3000);
  ASSERT_EQ(ranges.size(), 5u);
  for (const ByteRange& range : ranges) {
    std::vector<std::byte> bytes(image.part(range).begin(), image.part(range).end());
    ASSERT_TRUE(image.manifest().intact(range, bytes));
    for (const size_t at : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
      bytes[at] ^= std::byte{0x10};
      EXPECT_FALSE(image.manifest().intact(range, bytes));
      bytes[at] ^= std::byte{0x10};
    }
  }
}

TEST(StateImage, PartsThatDoNotEndWithABlockAreNotTaken) {
  const StateShape shape = small_shape();
  const StateImage image = StateImage::build(random_state(shape, 3000, 2), shape);
  const ByteRange whole = image.manifest().ranges(3000)[0];
  ASSERT_GT(whole.bytes, kBlock);
  const auto intact = [&](ByteRange range) {
    return image.manifest().intact(range, image.part(range));
  };
  EXPECT_TRUE(intact({whole.offset, kBlock}));
  EXPECT_TRUE(intact({whole.offset + kBlock, whole.bytes - kBlock}));
  EXPECT_FALSE(intact({whole.offset, kBlock - 1}));
  EXPECT_FALSE(intact({whole.offset + 1, kBlock}));
  EXPECT_FALSE(intact({whole.offset, whole.bytes + 1}));
  EXPECT_FALSE(intact({0, 4096}));  // the manifest is no section
}

TEST(StateImage, StateOfAnotherShapeIsRefused) {
  const StateShape shape = small_shape();
  SavedState state = random_state(shape, 10, 1);
  state.sources[1].index.pop_back();
  EXPECT_THROW(StateImage::build(state, shape), Error);

  const StateImage image = StateImage::build(random_state(shape, 10, 1), shape);
  StateShape other = shape;
  other.fingerprint[31] = std::byte{0};
  EXPECT_EQ(image.manifest().misfit(other), "the fingerprint of another engine");
  other = shape;
  other.sources[0].ratio = 1;
  EXPECT_EQ(image.manifest().misfit(other), "rows of another shape in KV source 0");
  other = shape;
  other.recent_bytes = 1;
  EXPECT_EQ(image.manifest().misfit(other), "a recent part of 5000 bytes, expected 1");
  other = shape;
  other.context_tokens = 9;
  EXPECT_EQ(image.manifest().misfit(other), "a state of 10 tokens, expected at most 9");
  other = shape;
  other.vocab_size = 1;
  EXPECT_NE(image.manifest().misfit(other), "");
}

// Changes bytes of a good manifest and, where `sealed`, makes its checksum right again, as a peer
// could that knows the format.
std::string refusal(size_t at, uint64_t value, size_t size, bool sealed = true) {
  const StateShape shape = small_shape();
  auto bytes = manifest_bytes(StateImage::build(random_state(shape, 10, 1), shape));
  std::memcpy(bytes.data() + at, &value, size);
  if (sealed) {
    const Digest sum = blake3_digest(std::span(bytes).first(bytes.size() - 32));
    std::copy(sum.begin(), sum.end(), bytes.end() - 32);
  }
  try {
    StateManifest::parse(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    return error.what();
  }
  return "";
}

TEST(StateManifest, HostileBytesEndInASentence) {
  EXPECT_EQ(refusal(0, 'X', 1), "does not start with \"PGRNKVST\"");
  EXPECT_EQ(refusal(8, 2, 4), "has format version 2, expected 1");
  EXPECT_EQ(refusal(12, 3, 4), "has unknown flags 0x2");
  EXPECT_EQ(refusal(48, 0, 8), "stands for 0 tokens, expected 1 to 16777216");
  EXPECT_EQ(refusal(48, ~uint64_t{0}, 8),
            "stands for 18446744073709551615 tokens, expected 1 to 16777216");
  EXPECT_EQ(refusal(48, 1 << 24, 8), "has a manifest of 368 bytes, too few for 16777216 tokens");
  EXPECT_NE(refusal(48, 9, 8), "");
  EXPECT_EQ(refusal(56, 65, 4), "has 65 KV sources, expected at most 64");
  EXPECT_EQ(refusal(60, 0, 4), "has blocks of 0 bytes, expected 262144");
  EXPECT_EQ(refusal(64, uint64_t{1} << 63, 8),
            "has a recent part of 9223372036854775808 bytes, expected at most 1099511627776");
  EXPECT_NE(refusal(64, uint64_t{1} << 40, 8), "");
  EXPECT_EQ(refusal(72, 0, 8), "has a manifest of 0 bytes, expected 88 to 2^32");
  EXPECT_EQ(refusal(72, 369, 8), "has 368 bytes, too few for a manifest of 369");
  EXPECT_NE(refusal(80, 4096, 8), "");
  EXPECT_EQ(refusal(88, 0, 4), "has 0 tokens a row in KV source 0, expected 1 to 16777216");
  EXPECT_EQ(refusal(92, 1, 4), "has 1 where KV source 0 has a zero");
  EXPECT_EQ(refusal(96, uint64_t{1} << 50, 8),
            "has rows of 1125899906842624 + 68 bytes in KV source 0, expected at most 1048576");
  EXPECT_EQ(refusal(136, 0x80000000u, 4),
            "has token -2147483648 at position 0, expected 0 or more");
  EXPECT_EQ(refusal(140, 999, 4, false), "has a damaged manifest");
  EXPECT_EQ(refusal(16, 1, 1), "");  // another fingerprint is misfit()'s business
}

TEST(StateManifest, CutAtAnyByteEndsInASentence) {
  const StateShape shape = small_shape();
  const auto bytes = manifest_bytes(StateImage::build(random_state(shape, 10, 1), shape));
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_THROW(StateManifest::parse(std::span(bytes).first(n)), Error) << n;
  EXPECT_EQ(StateManifest::bytes_of(std::span(bytes).first(StateManifest::kHeadBytes)),
            bytes.size());
}

TEST(StateManifest, SerializesWhatItParsed) {
  const StateShape shape = small_shape();
  const auto bytes = manifest_bytes(StateImage::build(random_state(shape, 4000, 1), shape));
  EXPECT_TRUE(StateManifest::parse(bytes).serialize() == bytes);
}

}  // namespace
}  // namespace peregrine::test
