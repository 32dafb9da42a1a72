#include "sampling/output_constraint.h"

#include <algorithm>

#include "text/control_tokens.h"

namespace peregrine {
namespace {

// Beyond these everything is forgotten and found again: a bound on memory (4 MB of states, and sets
// of one bit a token), not on the text.
constexpr size_t kMostStates = 4096, kMostSets = 256;

GrammarMatcher::State state_behind(GrammarMatcher& matcher, std::string_view text) {
  GrammarMatcher::State state = matcher.start();
  for (const char c : text) state = matcher.next(state, static_cast<uint8_t>(c));
  return state;
}

}  // namespace

SortedTokens::SortedTokens(const Tokenizer& tokenizer, int vocab_size)
    : vocab_size_(vocab_size), bytes_(static_cast<size_t>(vocab_size)) {
  const std::optional<int32_t> marker = tokenizer.id_of(control::kDsml);
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (!tokenizer.has(id) || (tokenizer.is_added(id) && id != marker)) continue;
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.empty()) continue;
    bytes_[static_cast<size_t>(id)] = bytes;
    tokens_.push_back({bytes, id, 0});
  }
  std::sort(tokens_.begin(), tokens_.end(),
            [](const Token& a, const Token& b) { return a.bytes < b.bytes; });
  for (size_t i = 1; i < tokens_.size(); ++i) {
    const std::string_view a = tokens_[i - 1].bytes, b = tokens_[i].bytes;
    const size_t most = std::min(a.size(), b.size());
    size_t common = 0;
    while (common < most && a[common] == b[common]) ++common;
    tokens_[i].common = static_cast<int32_t>(common);
  }
}

std::string_view SortedTokens::bytes(int32_t id) const {
  return id >= 0 && id < vocab_size_ ? bytes_[static_cast<size_t>(id)] : std::string_view();
}

bool can_go_on(const OutputConstraint& constraint) {
  GrammarMatcher matcher(constraint.grammar);
  return state_behind(matcher, constraint.begun) != GrammarMatcher::kDead;
}

ConstrainedOutput::ConstrainedOutput(std::shared_ptr<const OutputConstraint> constraint)
    : constraint_(std::move(constraint)),
      matcher_(constraint_->grammar),
      place_{.free = constraint_->free_until.has_value(),
             .state = state_behind(matcher_, constraint_->begun)} {}

ConstrainedOutput::Place ConstrainedOutput::behind(Place place, int32_t token) {
  if (place.free) {
    place.free = token != constraint_->free_until;
    return place;
  }
  const std::string_view bytes = constraint_->tokens->bytes(token);
  if (bytes.empty()) place.state = GrammarMatcher::kDead;  // an end, or nothing that fits
  for (const char c : bytes) place.state = matcher_.next(place.state, static_cast<uint8_t>(c));
  return place;
}

const TokenSet& ConstrainedOutput::allowed(Place place) {
  if (place.free) {
    if (!free_set_) free_set_ = make_set(place);
    return *free_set_;
  }
  auto at = sets_.find(place.state);
  if (at == sets_.end()) at = sets_.emplace(place.state, make_set(place)).first;
  return at->second;
}

TokenSet ConstrainedOutput::make_set(Place place) {
  TokenSet set(constraint_->tokens->vocab_size());
  if (place.free) {
    set.fill();
    for (const int32_t id : constraint_->end_ids) set.remove(id);
    return set;
  }
  // path[n]: the state behind the first n bytes of the token; tokens whose beginning leads nowhere
  // are passed over.
  std::vector<GrammarMatcher::State> path{place.state};
  bool any = false;
  for (const SortedTokens::Token& token : constraint_->tokens->tokens()) {
    const auto common = static_cast<size_t>(token.common);
    if (path.size() > common + 1) path.resize(common + 1);
    while (path.size() <= token.bytes.size() && path.back() != GrammarMatcher::kDead)
      path.push_back(
          matcher_.next(path.back(), static_cast<uint8_t>(token.bytes[path.size() - 1])));
    if (path.back() == GrammarMatcher::kDead) continue;
    set.add(token.id);
    any = true;
  }
  for (const int32_t id : constraint_->never) set.remove(id);
  if (!any || matcher_.accepting(place.state))
    for (const int32_t id : constraint_->end_ids) set.add(id);
  return set;
}

void ConstrainedOutput::add_output(int32_t token) {
  place_ = behind(place_, token);
  if (matcher_.states() < kMostStates && sets_.size() < kMostSets) return;
  sets_.clear();
  place_.state = matcher_.forget_all_but(place_.state);
}

}  // namespace peregrine
