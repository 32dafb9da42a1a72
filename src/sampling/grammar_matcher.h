// Follows a text through a byte grammar, byte by byte.
//
// Owns: the states met so far. A state is the set of all ways in which the text may go on, each a
// stack of positions in the grammar; stacks share their lower parts and equal states are one, so
// that a state is a number and its successors are looked up. What is looked up often costs a load.
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/byte_grammar.h"

namespace peregrine {

class GrammarMatcher {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;  // no text with this beginning matches

  explicit GrammarMatcher(std::shared_ptr<const ByteGrammar> grammar);

  State start() const { return start_; }
  // `state` may be kDead.
  State next(State state, uint8_t byte);
  // The text up to here matches as a whole.
  bool accepting(State state) const {
    return state != kDead && states_[static_cast<size_t>(state)].accepting;
  }
  size_t states() const { return states_.size(); }

  // Forgets every state but `state`, whose new number is returned. All others become invalid, those
  // of start() too.
  State forget_all_but(State state);

 private:
  static constexpr State kUnknown = -2;
  // A position to go on from once what stands above it has matched.
  struct Node {
    int32_t position, below;  // below: -1: nothing
    int32_t depth;
  };
  struct StateData {
    std::vector<int32_t> tops;  // ascending nodes, each at a byte set
    bool accepting = false;
    std::array<State, 256> next;
  };

  int32_t intern(int32_t position, int32_t below);
  State intern(StateData data);
  void expand(int32_t position, int32_t below, StateData& out);
  State finish(StateData data);

  std::shared_ptr<const ByteGrammar> grammar_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, int32_t> node_index_;  // position and below
  std::vector<StateData> states_;
  std::map<std::pair<std::vector<int32_t>, bool>, State> state_index_;
  std::set<std::pair<int32_t, int32_t>> expanded_;  // scratch of one step
  State start_ = kDead;
};

}  // namespace peregrine
