// Any bytes as a JSON schema: a grammar whose texts are JSON, or a sentence that says what is
// wrong.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "peregrine/error.h"
#include "sampling/grammar_matcher.h"
#include "text/json_grammar.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace peregrine;
  const JsonParse parsed = parse_json(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.value) return 0;
  std::shared_ptr<const ByteGrammar> grammar;
  try {
    JsonGrammar json;
    grammar = std::make_shared<ByteGrammar>(
        json.take(json.rule_for(*parsed.value, *parsed.value, "schema")));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) std::abort();
    return 0;
  }
  // One text of the grammar, its choices taken from the input; not all of them end.
  GrammarMatcher matcher(grammar);
  auto state = matcher.start();
  std::string text;
  for (size_t i = 0; i < 64 && state != GrammarMatcher::kDead; ++i) {
    if (matcher.accepting(state) && !parse_json(text).value) std::abort();
    auto next = GrammarMatcher::kDead;
    for (int step = 0; step < 256 && next == GrammarMatcher::kDead; ++step) {
      const auto byte = static_cast<uint8_t>(data[i % size] + step);
      next = matcher.next(state, byte);
      if (next != GrammarMatcher::kDead) text += static_cast<char>(byte);
    }
    if (next == GrammarMatcher::kDead && !matcher.accepting(state)) std::abort();
    state = next;
  }
  return 0;
}
