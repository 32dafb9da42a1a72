#include "text/byte_grammar.h"

#include <algorithm>

#include "base/fail.h"

namespace peregrine {

ByteSet ByteSet::range(int first, int last) {
  ByteSet set;
  for (int byte = first; byte <= last; ++byte)
    set.bits[static_cast<size_t>(byte / 64)] |= uint64_t{1} << (byte % 64);
  return set;
}

ByteSet ByteSet::of(std::string_view bytes) {
  ByteSet set;
  for (const char c : bytes) set = set | range(static_cast<uint8_t>(c), static_cast<uint8_t>(c));
  return set;
}

ByteSet ByteSet::without(const ByteSet& other) const {
  ByteSet result = *this;
  for (size_t i = 0; i < bits.size(); ++i) result.bits[i] &= ~other.bits[i];
  return result;
}

ByteSet ByteSet::operator&(const ByteSet& other) const {
  ByteSet result = *this;
  for (size_t i = 0; i < bits.size(); ++i) result.bits[i] &= other.bits[i];
  return result;
}

ByteSet ByteSet::operator|(const ByteSet& other) const {
  ByteSet result = *this;
  for (size_t i = 0; i < bits.size(); ++i) result.bits[i] |= other.bits[i];
  return result;
}

GrammarSequence& GrammarSequence::text(std::string_view bytes) {
  for (const char c : bytes) one_of(ByteSet::of({&c, 1}));
  return *this;
}

GrammarSequence& GrammarSequence::one_of(const ByteSet& set) {
  symbols_.push_back({GrammarSymbol::Kind::kBytes, grammar_.intern(set)});
  return *this;
}

GrammarSequence& GrammarSequence::rule(int rule) {
  symbols_.push_back({GrammarSymbol::Kind::kRule, rule});
  return *this;
}

int ByteGrammar::add_rule(bool nesting) {
  rules_.push_back({.alternatives = {}, .nesting = nesting});
  return static_cast<int>(rules_.size()) - 1;
}

void ByteGrammar::add(int rule, const GrammarSequence& alternative) {
  if (symbols_.size() + alternative.symbols_.size() + 1 > kMaxGrammarSymbols)
    fail(ErrorKind::kInvalidArgument, "the schema is too large: more than {} characters and rules",
         kMaxGrammarSymbols);
  rules_[static_cast<size_t>(rule)].alternatives.push_back(static_cast<int32_t>(symbols_.size()));
  symbols_.insert(symbols_.end(), alternative.symbols_.begin(), alternative.symbols_.end());
  symbols_.push_back({});
}

void ByteGrammar::prune() {
  std::vector<bool> completes(rules_.size(), false);
  const auto can_complete = [&](int32_t position) {
    for (; symbol(position).kind != GrammarSymbol::Kind::kEnd; ++position)
      if (symbol(position).kind == GrammarSymbol::Kind::kRule &&
          !completes[static_cast<size_t>(symbol(position).index)])
        return false;
    return true;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < rules_.size(); ++i) {
      const auto& alternatives = rules_[i].alternatives;
      if (completes[i] || std::none_of(alternatives.begin(), alternatives.end(), can_complete))
        continue;
      completes[i] = changed = true;
    }
  }
  for (Rule& rule : rules_)
    std::erase_if(rule.alternatives, [&](int32_t position) { return !can_complete(position); });
}

int ByteGrammar::add_character(const ByteSet& ascii, const ByteSet& leads) {
  const auto range = ByteSet::range;
  struct Form {
    int first, last;  // lead bytes
    int second_first, second_last;
    int tails;  // bytes behind the second
  };
  // The well-formed sequences of the Unicode standard, table 3-7.
  static constexpr Form kForms[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1},
                                    {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
                                    {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
                                    {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};
  const int character = add_rule();
  add(character, sequence().one_of(ascii));
  for (const Form& form : kForms) {
    GrammarSequence alternative = sequence();
    alternative.one_of(range(form.first, form.last) & leads);
    alternative.one_of(range(form.second_first, form.second_last));
    for (int i = 0; i < form.tails; ++i) alternative.one_of(range(0x80, 0xbf));
    add(character, alternative);
  }
  return character;
}

int32_t ByteGrammar::intern(const ByteSet& set) {
  const auto [at, added] = set_index_.emplace(set, static_cast<int32_t>(sets_.size()));
  if (added) sets_.push_back(set);
  return at->second;
}

}  // namespace peregrine
