// The wrapping of a custom tool's input is undone however its JSON is cut.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "server/custom_input.h"
#include "text/json_text.h"
#include "text/unicode.h"

namespace peregrine {
namespace {

std::string in_pieces(std::string_view json, size_t size) {
  CustomInput input;
  std::string out;
  for (size_t at = 0; at < json.size(); at += size) out += input.push(json.substr(at, size));
  return out + input.finish();
}

TEST(CustomInput, EscapesOfAllKinds) {
  const std::string json = R"( { "input" : "a\"b\\c\/\n\tä\ud83d\ude00é\ud800x" } )";
  const std::string expected = "a\"b\\c/\n\tä😀é\xEF\xBF\xBDx";
  for (size_t size = 1; size <= json.size(); ++size) EXPECT_EQ(in_pieces(json, size), expected);
}

TEST(CustomInput, IsShownAsSoonAsItIsKnown) {
  CustomInput input;
  EXPECT_EQ(input.push("{\"inp"), "");
  EXPECT_EQ(input.push("ut\": \"ab"), "ab");
  EXPECT_EQ(input.push("c\\"), "c");
  EXPECT_EQ(input.push("n"), "\n");
  EXPECT_EQ(input.push("\"}"), "");
  EXPECT_EQ(input.finish(), "");
}

TEST(CustomInput, OtherFormsAreKept) {
  for (const char* json : {"{}", "{\"x\": 1}", "{\"input\": 5}", "", "{\"in put\": \"a\"}"})
    EXPECT_EQ(in_pieces(json, 2), json);
  EXPECT_EQ(in_pieces(R"({"x": 1, "input": "late"})", 3), "late");
}

RC_GTEST_PROP(CustomInput, AnyTextComesBack, (const std::string& bytes)) {
  const std::string text = repair_utf8(bytes);
  const size_t size = *rc::gen::inRange<size_t>(1, 9);
  RC_ASSERT(in_pieces("{\"input\": " + json_quote(text) + "}", size) == text);
}

}  // namespace
}  // namespace peregrine
