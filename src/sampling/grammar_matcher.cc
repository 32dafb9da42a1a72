#include "sampling/grammar_matcher.h"

#include <algorithm>

#include "text/json_text.h"

namespace peregrine {
namespace {

// A schema can be written so that the ways on double with every byte. Beyond this many the others
// are dropped: what is left still matches.
constexpr size_t kMostExpansions = 50000;

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const ByteGrammar> grammar)
    : grammar_(std::move(grammar)) {
  StateData data;
  for (const int32_t alternative : grammar_->rule(grammar_->root).alternatives)
    expand(alternative, -1, data);
  start_ = finish(std::move(data));
}

GrammarMatcher::State GrammarMatcher::next(State state, uint8_t byte) {
  if (state == kDead) return kDead;
  const State known = states_[static_cast<size_t>(state)].next[byte];
  if (known != kUnknown) return known;
  StateData data;
  for (const int32_t top : states_[static_cast<size_t>(state)].tops) {
    const Node node = nodes_[static_cast<size_t>(top)];
    if (grammar_->byte_set(grammar_->symbol(node.position).index).has(byte))
      expand(node.position + 1, node.below, data);
  }
  const State result = finish(std::move(data));
  states_[static_cast<size_t>(state)].next[byte] = result;
  return result;
}

// Follows `position` to the byte sets that may come next.
void GrammarMatcher::expand(int32_t position, int32_t below, StateData& out) {
  using Kind = GrammarSymbol::Kind;
  if (expanded_.size() >= kMostExpansions || !expanded_.emplace(position, below).second) return;
  const GrammarSymbol symbol = grammar_->symbol(position);
  switch (symbol.kind) {
    case Kind::kEnd:
      if (below < 0) {
        out.accepting = true;
      } else {
        const Node node = nodes_[static_cast<size_t>(below)];
        expand(node.position, node.below, out);
      }
      return;
    case Kind::kBytes:
      out.tops.push_back(intern(position, below));
      return;
    case Kind::kRule: {
      const ByteGrammar::Rule& rule = grammar_->rule(symbol.index);
      // Nothing to come back to behind the last symbol: lists do not pile up.
      const bool last = grammar_->symbol(position + 1).kind == Kind::kEnd;
      const int32_t back = last ? below : intern(position + 1, below);
      if (rule.nesting && back >= 0 && nodes_[static_cast<size_t>(back)].depth >= kMaxJsonDepth)
        return;
      for (const int32_t alternative : rule.alternatives) expand(alternative, back, out);
      return;
    }
  }
}

GrammarMatcher::State GrammarMatcher::finish(StateData data) {
  expanded_.clear();
  if (data.tops.empty() && !data.accepting) return kDead;
  std::sort(data.tops.begin(), data.tops.end());
  data.tops.erase(std::unique(data.tops.begin(), data.tops.end()), data.tops.end());
  return intern(std::move(data));
}

GrammarMatcher::State GrammarMatcher::intern(StateData data) {
  const auto [at, added] = state_index_.emplace(std::pair(data.tops, data.accepting),
                                                static_cast<State>(states_.size()));
  if (added) {
    data.next.fill(kUnknown);
    states_.push_back(std::move(data));
  }
  return at->second;
}

int32_t GrammarMatcher::intern(int32_t position, int32_t below) {
  const uint64_t key =
      uint64_t{static_cast<uint32_t>(position)} << 32 | static_cast<uint32_t>(below);
  const auto [at, added] = node_index_.emplace(key, static_cast<int32_t>(nodes_.size()));
  if (added) {
    const int32_t depth = below < 0 ? 1 : nodes_[static_cast<size_t>(below)].depth + 1;
    nodes_.push_back({position, below, depth});
  }
  return at->second;
}

GrammarMatcher::State GrammarMatcher::forget_all_but(State state) {
  if (state == kDead) return kDead;
  const StateData kept = std::move(states_[static_cast<size_t>(state)]);
  const std::vector<Node> old = std::move(nodes_);
  nodes_.clear();
  node_index_.clear();
  states_.clear();
  state_index_.clear();
  start_ = kDead;
  StateData data{.tops = {}, .accepting = kept.accepting, .next = {}};
  for (const int32_t top : kept.tops) {
    std::vector<int32_t> positions;  // from the top down
    for (int32_t n = top; n >= 0; n = old[static_cast<size_t>(n)].below)
      positions.push_back(old[static_cast<size_t>(n)].position);
    int32_t below = -1;
    for (auto p = positions.rbegin(); p != positions.rend(); ++p) below = intern(*p, below);
    data.tops.push_back(below);
  }
  return finish(std::move(data));
}

}  // namespace peregrine
