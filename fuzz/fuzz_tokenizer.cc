// Any bytes as a tokenizer.json, and as a text: either an Error, or a tokenizer whose decoding
// gives back what it encoded.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "peregrine/error.h"
#include "text/byte_alphabet.h"
#include "text/json_text.h"
#include "text/tokenizer.h"

namespace {

using peregrine::SpecialTokens;
using peregrine::Tokenizer;

// A tokenizer of all bytes and a few merges, with the parts that the loader insists on.
Tokenizer small_tokenizer() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling =
        peregrine::to_byte_alphabet(std::string(1, static_cast<char>(byte)));
    vocab += peregrine::json_quote(spelling) + ":" + std::to_string(byte) + ",";
  }
  const std::string json =
      R"({"normalizer":null,"decoder":{"type":"ByteLevel"},"added_tokens":[)"
      R"({"id":260,"content":"<a>"},{"id":261,"content":"<a><b>"}],"pre_tokenizer":{"pretokenizers":[)"
      R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":"\\p{N}{1,3}"}},)"
      R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":"[一-龥぀-ゟ゠-ヿ]+"}},)"
      R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},)"
      R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)"
      R"("model":{"type":"BPE","merges":["a a","aa a","b a"],"vocab":{)" +
      vocab + R"("aa":256,"aaa":257,"ba":258}}})";
  return Tokenizer::from_json(json, "small");
}

void check(const Tokenizer& tokenizer, std::string_view text) {
  const std::string repaired = peregrine::repair_utf8(text);
  for (const auto mode : {SpecialTokens::kRecognise, SpecialTokens::kPlain}) {
    const auto ids = tokenizer.encode(text, mode);
    if (tokenizer.decode(ids) != repaired) std::abort();
    peregrine::Detokenizer stream(tokenizer);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    if (streamed + stream.flush() != repaired) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer small = small_tokenizer();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  check(small, input);
  try {
    check(Tokenizer::from_json(input, "input"), "The <think> 12345 東京  \n\n caf\u00e9 .com");
  } catch (const peregrine::Error& error) {
    if (error.kind() != peregrine::ErrorKind::kBadCheckpoint) std::abort();
  }
  return 0;
}
