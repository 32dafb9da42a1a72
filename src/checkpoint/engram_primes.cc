#include "checkpoint/engram_primes.h"

namespace peregrine {
namespace {

uint64_t power_mod(uint64_t base, uint64_t exponent, uint64_t modulus) {
  uint64_t result = 1;
  for (base %= modulus; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = result * base % modulus;
    base = base * base % modulus;
  }
  return result;
}

// Miller-Rabin; the bases 2, 3, 5 and 7 decide every n < 3,215,031,751, and 11 all of 32 bits.
bool is_prime(uint64_t n) {
  constexpr uint64_t kBases[] = {2, 3, 5, 7, 11};
  if (n < 2) return false;
  for (const uint64_t p : kBases) {
    if (n % p == 0) return n == p;
  }
  uint64_t odd = n - 1;
  int twos = 0;
  for (; odd % 2 == 0; odd /= 2) ++twos;
  for (const uint64_t base : kBases) {
    uint64_t x = power_mod(base, odd, n);
    if (x == 1 || x == n - 1) continue;
    bool passes = false;
    for (int i = 1; i < twos && !passes; ++i) {
      x = x * x % n;
      passes = x == n - 1;
    }
    if (!passes) return false;
  }
  return true;
}

}  // namespace

// The search restarts below vocab_size for every order and skips primes already taken. Those are
// exactly the ones it passes on the way, so walking on from the last prime finds the same.
std::vector<std::vector<std::vector<int64_t>>> engram_primes(int n_tables, int max_ngram,
                                                             int n_heads, int64_t vocab_size) {
  std::vector<std::vector<std::vector<int64_t>>> primes(
      n_tables, std::vector<std::vector<int64_t>>(max_ngram - 1));
  int64_t next = vocab_size;
  for (auto& table : primes) {
    for (auto& order : table) {
      for (int head = 0; head < n_heads; ++head, ++next) {
        while (!is_prime(static_cast<uint64_t>(next))) ++next;
        order.push_back(next);
      }
    }
  }
  return primes;
}

}  // namespace peregrine
