// The table sizes of the Engram memory (spec: engram.md section 1): one prime per table, n-gram
// order and head. Checks row counts at load; the row hashing uses the same primes.
#pragma once

#include <cstdint>
#include <vector>

namespace peregrine {

// primes[table][order - 2][head], for orders 2..max_ngram: the smallest primes >= vocab_size, in
// ascending order, each used once. Needs 1 <= vocab_size < 2^32, max_ngram >= 1 and n_heads >= 0.
std::vector<std::vector<std::vector<int64_t>>> engram_primes(int n_tables, int max_ngram,
                                                             int n_heads, int64_t vocab_size);

}  // namespace peregrine
