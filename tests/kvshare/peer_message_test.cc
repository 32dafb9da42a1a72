// Messages between servers come back as they were said; proofs are worth nothing elsewhere.
#include "kvshare/peer_message.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "peregrine/error.h"

namespace peregrine::test {
namespace {

Nonce nonce(int first) {
  Nonce bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

std::vector<PeerMessage> one_of_each() {
  return {HelloMessage{.version = 7, .nonce = nonce(1)},
          ChallengeMessage{.nonce = nonce(2), .proof = nonce(3), .machine = nonce(6)},
          ProofMessage{.proof = nonce(4), .address = {std::byte{1}, std::byte{2}}},
          WelcomeMessage{.shared_memory = 1},
          RefusedMessage{},
          RequestMessage{.key = std::string(64, 'a'), .fingerprint = nonce(5), .deadline_ms = 1234},
          OfferMessage{.status = OfferStatus::kBusy, .manifest_bytes = 10, .image_bytes = 1u << 31},
          ReadMessage{.offset = uint64_t{1} << 40, .bytes = 4096},
          DoneMessage{}};
}

TEST(PeerMessage, ComesBackAsItWasSaid) {
  for (const PeerMessage& message : one_of_each())
    EXPECT_TRUE(decode_peer_message(encode(message)) == message) << message.index();
}

TEST(PeerMessage, BytesAreTheDocumentedOnes) {
  const auto read = encode(ReadMessage{.offset = 0x0102, .bytes = 3});
  const std::vector<int> expected{8, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
  ASSERT_EQ(read.size(), expected.size());
  for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(static_cast<int>(read[i]), expected[i]) << i;
  const std::vector<size_t> sizes{40, 100, 42, 8, 4, 104, 24, 20, 4};
  const auto messages = one_of_each();
  for (size_t i = 0; i < messages.size(); ++i) EXPECT_EQ(encode(messages[i]).size(), sizes[i]) << i;
}

TEST(PeerMessage, AnyOtherLengthIsRefused) {
  for (const PeerMessage& message : one_of_each()) {
    auto bytes = encode(message);
    for (size_t n = 0; n < bytes.size(); ++n)
      EXPECT_THROW(decode_peer_message(std::span(bytes).first(n)), Error);
    bytes.push_back(std::byte{0});
    EXPECT_THROW(decode_peer_message(bytes), Error);
  }
}

// Computed with Python's hmac over "peregrine owner" and the two nonces.
TEST(PeerProof, IsHmacSha256) {
  std::string hex;
  for (const std::byte b : peer_proof("a secret of members", PeerSide::kOwner, nonce(1), nonce(2)))
    hex += fmt::format("{:02x}", static_cast<int>(b));
  EXPECT_EQ(hex, "50fed7ab1b40887b52a60f78474fd36715af03a54e944b26b8c2edafe09ee57d");
}

TEST(PeerProof, DependsOnEverything) {
  const Proof proof = peer_proof("a secret of members", PeerSide::kOwner, nonce(1), nonce(2));
  EXPECT_TRUE(
      same_proof(proof, peer_proof("a secret of members", PeerSide::kOwner, nonce(1), nonce(2))));
  EXPECT_FALSE(
      same_proof(proof, peer_proof("a secret of memberS", PeerSide::kOwner, nonce(1), nonce(2))));
  EXPECT_FALSE(
      same_proof(proof, peer_proof("a secret of members", PeerSide::kReader, nonce(1), nonce(2))));
  EXPECT_FALSE(
      same_proof(proof, peer_proof("a secret of members", PeerSide::kOwner, nonce(2), nonce(1))));
  EXPECT_FALSE(
      same_proof(proof, peer_proof("a secret of members", PeerSide::kOwner, nonce(1), nonce(3))));
  EXPECT_NE(random_nonce(), random_nonce());
}

TEST(PeerMessage, LongAddressIsRefusedBeforeItIsRead) {
  ProofMessage message{.proof = nonce(1), .address = {}};
  message.address.resize(kMaxAddressBytes);
  EXPECT_TRUE(decode_peer_message(encode(message)) == PeerMessage(message));
  message.address.resize(kMaxAddressBytes + 1);
  EXPECT_THROW(decode_peer_message(encode(message)), Error);
}

TEST(MachineMark, IsTheSameOnOneMachineAndForOneConnection) {
  const Proof mark = machine_mark("a secret of members", nonce(1), nonce(2));
  EXPECT_NE(mark, Proof{});
  EXPECT_EQ(mark, machine_mark("a secret of members", nonce(1), nonce(2)));
  EXPECT_NE(mark, machine_mark("a secret of members", nonce(1), nonce(3)));
  EXPECT_NE(mark, machine_mark("a secret of memberS", nonce(1), nonce(2)));
}

}  // namespace
}  // namespace peregrine::test
