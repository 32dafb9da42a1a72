// Cuts text into the pieces that BPE merges within (spec: tokenizer.md section 4), without a regex
// engine: the three patterns of this model family are fixed and matched by hand.
#pragma once

#include <string_view>
#include <vector>

namespace peregrine {

// Appends the pieces of `text` in order; together they are `text`. `text` must be valid UTF-8, and
// its ends count as borders, so text on either side of an added token is cut on its own.
void pretokenize(std::string_view text, std::vector<std::string_view>& pieces);

}  // namespace peregrine
