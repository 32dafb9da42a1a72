// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011).
//
// A number is a pure function of (seed, position, purpose, index), so a sampled token depends
// neither on the batch its sequence ran in nor on how steps were scheduled.
//
// `position` is the sequence position a step decides first; it grows with every step of a
// sequence, so (position, index) never repeats. Do not use the position of a later draft slot
// instead: after a rejection the next step would meet the same numbers again, now conditioned on
// the rejection, and the output distribution would be wrong. Slots are told apart by `index`.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace peregrine {

// What a number is for; numbers of different purposes are independent.
enum class Purpose : uint32_t { kSample = 0, kDraft = 1, kVerify = 2, kBonus = 3 };

using PhiloxBlock = std::array<uint32_t, 4>;

// Ten rounds over a 128-bit counter with a 64-bit key.
inline PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// 53 random bits: the upper 53 of the block's first two words.
inline uint64_t random_bits53(uint64_t seed, uint64_t position, Purpose purpose, uint32_t index) {
  const PhiloxBlock block =
      philox4x32({index, static_cast<uint32_t>(purpose), static_cast<uint32_t>(position),
                  static_cast<uint32_t>(position >> 32)},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (uint64_t{block[0]} << 32 | block[1]) >> 11;
}

// Uniform in [0, 1), a multiple of 2^-53.
inline double uniform(uint64_t seed, uint64_t position, Purpose purpose, uint32_t index) {
  return static_cast<double>(random_bits53(seed, position, purpose, index)) * 0x1p-53;
}

// Exp(1) noise, always positive and finite: the logarithm is taken at cell centres, never at 0.
inline double exponential(uint64_t seed, uint64_t position, Purpose purpose, uint32_t index) {
  // The last cell's centre would round to 1; below 2^52 the half is kept exactly.
  const uint64_t bits = random_bits53(seed, position, purpose, index) >> 1;
  return -std::log((static_cast<double>(bits) + 0.5) * 0x1p-52);
}

// Standard Gumbel noise: argmax(log p + gumbel) and argmax(p / exponential) are the same draw.
inline double gumbel(uint64_t seed, uint64_t position, Purpose purpose, uint32_t index) {
  return -std::log(exponential(seed, position, purpose, index));
}

}  // namespace peregrine
