#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "peregrine/error.h"
#include "text/text_fixtures.h"
#include "text/unicode.h"

namespace peregrine::test {
namespace {

using Ids = std::vector<int32_t>;

std::string from_base64(const std::string& text) {
  static const std::string kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(kAlphabet.find(c));
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return bytes;
}

TEST(Tokenizer, EncodesEveryCase) {
  const auto cases = read_cases("tokenizer/cases.jsonl");
  ASSERT_GE(cases.size(), 300u);
  for (const auto& c : cases) {
    SCOPED_TRACE(c["id"].get<std::string>());
    const std::string text = c["text"];
    const Ids ids = c["ids"];
    EXPECT_EQ(fixture_tokenizer().encode(text, SpecialTokens::kRecognise), ids);
    EXPECT_EQ(fixture_tokenizer().encode(text, SpecialTokens::kPlain),
              c.contains("ids_plain") ? c["ids_plain"].get<Ids>() : ids);
    EXPECT_EQ(fixture_tokenizer().decode(ids), text);
    if (c.contains("bytes_b64")) {
      const std::string bytes = from_base64(c["bytes_b64"]);
      EXPECT_FALSE(is_valid_utf8(bytes));
      EXPECT_EQ(repair_utf8(bytes), text);
      EXPECT_EQ(fixture_tokenizer().encode(bytes, SpecialTokens::kRecognise), ids);
    }
  }
}

TEST(Tokenizer, DecodesEveryCaseWholeAndStreaming) {
  for (const auto& c : read_cases("tokenizer/decode_cases.jsonl")) {
    SCOPED_TRACE(c["id"].get<std::string>());
    const Ids ids = c["ids"];
    EXPECT_EQ(fixture_tokenizer().decode(ids), c["text"].get<std::string>());
    Detokenizer stream(fixture_tokenizer());
    std::vector<std::string> pieces;
    for (const int32_t id : ids) pieces.push_back(stream.push(id));
    EXPECT_EQ(pieces, c["pieces"].get<std::vector<std::string>>());
    EXPECT_EQ(stream.flush(), c["flush"].get<std::string>());
  }
}

TEST(Tokenizer, EncodesThePromptsOfTheTinyModel) {
  std::istringstream lines(read_text(std::string(PEREGRINE_MODELS) + "/tiny/expected.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto c = nlohmann::json::parse(line);
    EXPECT_EQ(tiny_tokenizer().encode(c["prompt"].get<std::string>(), SpecialTokens::kRecognise),
              c["prompt_ids"].get<Ids>());
    EXPECT_EQ(tiny_tokenizer().decode(c["continuation_ids"].get<Ids>()),
              c["continuation"].get<std::string>());
  }
  EXPECT_EQ(count, 12);
}

TEST(Tokenizer, LooksUpTokens) {
  const Tokenizer& t = fixture_tokenizer();
  EXPECT_EQ(t.vocab_size(), 129265);
  EXPECT_EQ(t.id_of("<think>"), 128821);
  EXPECT_EQ(t.id_of("<｜begin▁of▁sentence｜>"), 0);
  EXPECT_EQ(t.id_of("the"), std::nullopt);
  EXPECT_EQ(t.token_bytes(223), " ");
  EXPECT_EQ(t.vocabulary_string(223), "Ġ");
  EXPECT_EQ(t.token_bytes(3816), "\">\n");
  EXPECT_FALSE(t.has(129000));
  for (const int32_t id : {-1, 129000, 129265, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(t.token_bytes(id), "");
  }
  EXPECT_EQ(t.decode(Ids{19923, 129000, -5, 14}), "Hello,");
}

TEST(Tokenizer, MasksWhatMustNotBeSampled) {
  const std::vector<int32_t> masked = fixture_tokenizer().masked_ids(129280);
  const auto is_masked = [&](int32_t id) {
    return std::binary_search(masked.begin(), masked.end(), id);
  };
  for (const int32_t id : {0, 2, 128000, 128798, 128815, 129264, 129279}) {
    EXPECT_TRUE(is_masked(id)) << id;
  }
  for (const int32_t id : {1, 3, 127999, 128799, 128803, 128821, 128825}) {
    EXPECT_FALSE(is_masked(id)) << id;
  }
  EXPECT_EQ(tiny_tokenizer().masked_ids(4096), (Ids{0, 2, 4076, 4077, 4095}));
  EXPECT_EQ(fixture_tokenizer().end_of_turn_ids(), (Ids{0, 1, 128799, 128803, 128804, 128828}));
}

// Text of characters that matter to the splits, and of any others.
rc::Gen<std::string> any_text() {
  const auto character = rc::gen::weightedOneOf<std::string>({
      {6, rc::gen::map(rc::gen::inRange<int>(0, 0x80), [](int c) { return std::string(1, c); })},
      {3, rc::gen::elementOf(std::vector<std::string>{
              " ",       "  ",         "\n",       "\r\n",    "\t",     "the",    "12345",
              "東",      "の",         "é",        "e\u0301", "\u00A0", "\u3000", "🦀",
              "<think>", "<｜User｜>", "｜DSML｜", "...",     "\u200B", "½",      "</"})},
      {2, rc::gen::map(rc::gen::inRange<int>(0x80, 0x110000),
                       [](int c) {
                         std::string text;
                         append_utf8(text, c >= 0xD800 && c < 0xE000 ? 0xFFFD : c);
                         return text;
                       })},
  });
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(character),
                      [](const std::vector<std::string>& parts) {
                        std::string text;
                        for (const std::string& part : parts) text += part;
                        return text;
                      });
}

RC_GTEST_PROP(TokenizerProperty, DecodingGivesTheTextBack, ()) {
  const std::string text = *any_text();
  for (const auto mode : {SpecialTokens::kRecognise, SpecialTokens::kPlain}) {
    RC_ASSERT(fixture_tokenizer().decode(fixture_tokenizer().encode(text, mode)) == text);
    RC_ASSERT(tiny_tokenizer().decode(tiny_tokenizer().encode(text, mode)) == text);
  }
}

RC_GTEST_PROP(TokenizerProperty, StreamingEqualsWholeDecoding, ()) {
  const auto ids = *rc::gen::container<Ids>(rc::gen::inRange<int32_t>(0, 600));
  Detokenizer stream(fixture_tokenizer());
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = stream.push(id);
    RC_ASSERT(is_valid_utf8(piece));
    text += piece;
  }
  text += stream.flush();
  RC_ASSERT(text == fixture_tokenizer().decode(ids));
}

RC_GTEST_PROP(UnicodeProperty, RepairingGivesValidTextAndKeepsValidText, ()) {
  const auto bytes = *rc::gen::container<std::string>(rc::gen::arbitrary<char>());
  const std::string repaired = repair_utf8(bytes);
  RC_ASSERT(is_valid_utf8(repaired));
  RC_ASSERT(repair_utf8(repaired) == repaired);
  RC_ASSERT(is_valid_utf8(bytes) == (repaired == bytes));
}

// ---- files that are refused ------------------------------------------------------------------

nlohmann::json tiny_file() {
  return nlohmann::json::parse(read_text(std::string(PEREGRINE_MODELS) + "/tiny/tokenizer.json"));
}

std::string refusal(const std::string& text) {
  try {
    Tokenizer::from_json(text, "tokenizer.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadCheckpoint);
    return error.what();
  }
  return "accepted";
}

void expect_refusal(const nlohmann::json& file, const std::string& part) {
  const std::string sentence = refusal(file.dump());
  EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
  EXPECT_EQ(sentence.find("tokenizer.json: "), 0u) << sentence;
}

TEST(TokenizerFile, RefusesBadVocabularies) {
  EXPECT_NE(refusal("{\"model\"").find("not JSON"), std::string::npos);
  EXPECT_NE(refusal("[]").find("expected an object"), std::string::npos);
  auto file = tiny_file();
  file["model"]["vocab"]["the"] = 17;
  expect_refusal(file, "share id 17");
  file["model"]["vocab"]["the"] = -1;
  expect_refusal(file, "has id -1, expected an integer from 0");
  file["model"]["vocab"]["the"] = 1e9;
  expect_refusal(file, "has id 1000000000.0");
  file["model"]["vocab"]["the"] = 999999999999;
  expect_refusal(file, "has id 999999999999");
  file = tiny_file();
  file["model"]["vocab"].erase("a");
  expect_refusal(file, "no token for the byte 0x61");
  file = tiny_file();
  file["model"]["vocab"]["漢"] = 5000;
  expect_refusal(file, "neither byte-level text nor an added token");
  file = tiny_file();
  file["model"].erase("vocab");
  expect_refusal(file, "vocab is missing");
}

TEST(TokenizerFile, RefusesBadMerges) {
  auto file = tiny_file();
  file["model"].erase("merges");
  expect_refusal(file, "model.merges is missing");
  file["model"]["merges"] = nlohmann::json::array();
  expect_refusal(file, "model.merges is empty");
  file = tiny_file();
  file["model"]["merges"][3] = "xqzj wkv";
  expect_refusal(file, "merge 3 names \"xqzj\"");
  file["model"]["merges"][3] = "threeword merge here";
  expect_refusal(file, "expected two tokens");
  file["model"]["merges"][3] = file["model"]["merges"][0];
  expect_refusal(file, "merge 3 repeats the pair");
}

TEST(TokenizerFile, RefusesBadAddedTokens) {
  auto file = tiny_file();
  file["added_tokens"][5]["id"] = file["added_tokens"][6]["id"];
  expect_refusal(file, "which \"<｜System｜>\" has already");
  file = tiny_file();
  file["added_tokens"][5]["content"] = "<think>";
  expect_refusal(file, "appears twice");
  file["added_tokens"][5]["content"] = "";
  expect_refusal(file, "needs an id and a content");
  file = tiny_file();
  file["added_tokens"][5]["id"] = 300;
  expect_refusal(file, "has id 300, which");
  file = tiny_file();
  file["added_tokens"][5]["lstrip"] = true;
  expect_refusal(file, "sets lstrip");
}

TEST(TokenizerFile, RefusesOtherKinds) {
  auto file = tiny_file();
  file["normalizer"] = {{"type", "NFC"}};
  expect_refusal(file, "normalizer is");
  file = tiny_file();
  file["model"]["type"] = "Unigram";
  expect_refusal(file, "expected \"BPE\"");
  file = tiny_file();
  file["model"]["byte_fallback"] = true;
  expect_refusal(file, "model.byte_fallback is true");
  file = tiny_file();
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\p{N}";
  expect_refusal(file, "step 0 of pre_tokenizer");
  file["pre_tokenizer"] = {{"type", "Whitespace"}};
  expect_refusal(file, "pre_tokenizer has 0 steps");
  file = tiny_file();
  file["decoder"]["type"] = "WordPiece";
  expect_refusal(file, "decoder is");
}

TEST(TokenizerFile, AcceptsMergesAsLists) {
  auto file = tiny_file();
  for (auto& merge : file["model"]["merges"]) {
    const std::string text = merge;
    const size_t space = text.find(' ');
    merge = {text.substr(0, space), text.substr(space + 1)};
  }
  const Tokenizer other = Tokenizer::from_json(file.dump(), "lists");
  const std::string text = "The capital of Bolivia is Sucre.";
  EXPECT_EQ(other.encode(text, SpecialTokens::kPlain),
            tiny_tokenizer().encode(text, SpecialTokens::kPlain));
}

TEST(TokenizerFile, NamesAFileThatCannotBeOpened) {
  try {
    Tokenizer::load("/nonexistent/tokenizer.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_STREQ(error.what(), "/nonexistent/tokenizer.json: cannot open the tokenizer");
  }
}

}  // namespace
}  // namespace peregrine::test
