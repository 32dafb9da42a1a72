// Known answers: the hashes published with BLAKE3 (test_vectors.json; input byte i is i mod 251).
#include "kvshare/blake3_digest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace peregrine::test {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte b : digest) text += fmt::format("{:02x}", static_cast<int>(b));
  return text;
}

std::string digest_of(size_t bytes) {
  std::vector<std::byte> input(bytes);
  for (size_t i = 0; i < bytes; ++i) input[i] = static_cast<std::byte>(i % 251);
  return hex(blake3_digest(input));
}

TEST(Blake3Digest, PublishedVectors) {
  EXPECT_EQ(digest_of(0), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
  EXPECT_EQ(digest_of(1), "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213");
  EXPECT_EQ(digest_of(1024), "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7");
  EXPECT_EQ(digest_of(102400), "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085");
}

// Lengths around those that the vector code takes at once.
TEST(Blake3Digest, EveryByteCounts) {
  for (const size_t bytes :
       {size_t{1023}, size_t{1025}, size_t{16 * 1024 + 1}, size_t{256 * 1024}}) {
    std::vector<std::byte> input(bytes);
    const Digest zero = blake3_digest(input);
    for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) {
      input[at] = std::byte{1};
      EXPECT_NE(blake3_digest(input), zero) << bytes << " at " << at;
      input[at] = std::byte{0};
    }
  }
}

}  // namespace
}  // namespace peregrine::test
