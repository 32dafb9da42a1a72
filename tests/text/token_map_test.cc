#include "text/token_map.h"

#include <gtest/gtest.h>

#include "peregrine/error.h"
#include "support/fixtures.h"
#include "text/text_fixtures.h"

namespace peregrine::test {
namespace {

TEST(TokenMap, EqualsTheReferenceOnTheMadeUpVocabulary) {
  const auto vocab = nlohmann::json::parse(text_data("engram/vocab.json"));
  const auto texts = vocab["decode"].get<std::vector<std::string>>();
  std::vector<std::string> raw;
  for (size_t id = 0; id < texts.size(); ++id) raw.push_back("<raw" + std::to_string(id) + ">");
  const Fixture expected(data_path("engram/expected.safetensors"));
  const TokenMap map = make_token_map(texts, raw, 256, 2);
  EXPECT_EQ(map.n_classes, 134);
  EXPECT_EQ(map.ids, expected.ints("map.token_map"));
  EXPECT_EQ(map.pad, expected.ints("map.pad_id")[0]);
}

TEST(TokenMap, CountsTheReleasedClasses) {
  const TokenMap map = make_token_map(fixture_tokenizer(), 129280, 2, 99092);
  EXPECT_EQ(map.n_classes, 99092);
  EXPECT_EQ(map.ids.size(), 129280u);
  EXPECT_EQ(map.pad, 2);
  // The first 128,000 entries fold into 97,812; every added token but the three among them is new.
  EXPECT_EQ(*std::max_element(map.ids.begin(), map.ids.begin() + 128000), 97811);
  EXPECT_EQ(map.ids[128000], 97812);
  EXPECT_EQ(map.ids[129279], 99091);
}

TEST(TokenMap, CountsTheTinyClasses) {
  const TokenMap map = make_token_map(tiny_tokenizer(), 4096, 2, 3169);
  EXPECT_EQ(map.n_classes, 3169);
  EXPECT_EQ(map.pad, 2);
}

TEST(TokenMap, MapsUnknownIdsToPad) {
  const TokenMap map = make_token_map(tiny_tokenizer(), 5000, 2, 3169);
  EXPECT_EQ(map.ids.size(), 5000u);
  EXPECT_EQ(map.ids[4999], map.pad);
}

TEST(TokenMap, RefusesAnotherCount) {
  EXPECT_THROW(make_token_map(tiny_tokenizer(), 4096, 2, 3170), Error);
  EXPECT_THROW(make_token_map(tiny_tokenizer(), 4096, 4096, 3169), Error);
}

TEST(TokenMap, FoldsCaseAccentsWidthAndSpace) {
  EXPECT_EQ(token_class_key(" The"), "the");
  EXPECT_EQ(token_class_key("É"), "e");
  EXPECT_EQ(token_class_key("ＦＵＬＬ"), "full");
  EXPECT_EQ(token_class_key("\n\t  "), " ");
  EXPECT_EQ(token_class_key("\u0301"), "\u0301");  // nothing left: the text itself
  EXPECT_EQ(token_class_key("ΟΔΟΣ"), "οδοσ");      // no final sigma
  EXPECT_EQ(token_class_key("İ"), "i");
  EXPECT_EQ(token_class_key("a \n b"), "a b");
  EXPECT_EQ(token_class_key("\u3000x\u2003"), "x");
}

}  // namespace
}  // namespace peregrine::test
