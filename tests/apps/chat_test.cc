// peregrine chat without a terminal: lines in, answers out.
#include <nlohmann/json.hpp>

#include "program.h"

namespace peregrine::test {
namespace {

ProgramResult chat(const std::string& input, std::vector<std::string> arguments = {}) {
  arguments.insert(arguments.begin(), {"chat", "--temperature", "0"});
  return run_program(std::move(arguments), input);
}

TEST(Chat, AnswersLinesOfAPipe) {
  const ProgramResult result = chat("Thanks\n/quit\nnever read\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "You are welcome!\n");
  EXPECT_EQ(result.err, "");
}

TEST(Chat, EndsWithTheInput) {
  EXPECT_EQ(chat("").code, 0);
  EXPECT_EQ(chat("Thanks").out, "You are welcome!\n");  // without a line end
}

TEST(Chat, KeepsTheConversation) {
  // The recorded two-turn prompt of the model.
  const ProgramResult result = chat("Thanks\nWhat is your favorite color?\n/stats\n");
  EXPECT_EQ(result.out.substr(0, result.out.find("15 tokens")),
            "You are welcome!\nI do not have a favorite color, but many people like blue.\n");
  // Everything before the new message was there: the first prompt's 5 tokens and the answer, but
  // for its end token, which no step has seen.
  EXPECT_NE(result.out.find("prompt 19 tokens"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("reused)"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("2 turns"), std::string::npos) << result.out;
}

TEST(Chat, ForgetsOnClear) {
  const ProgramResult result = chat("Thanks\n/clear\nThanks\n/stats\n");
  EXPECT_NE(result.out.find("prompt 5 tokens"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("1 turns"), std::string::npos) << result.out;
}

TEST(Chat, ALineThatIsWrongCostsOnlyItself) {
  const ProgramResult result = chat(
      "/bogus\n/temperature hot\n/temperature 9\n/thinking 0\n/draft 99\n/load /nonexistent\n"
      "/save /nonexistent/file\n/save\nThanks\n");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "You are welcome!\n");
  EXPECT_EQ(result.error_lines(), 8u) << result.err;
}

TEST(Chat, SavesAndLoadsConversations) {
  const TempFolder folder;
  const std::string path = (folder.path() / "talk.json").string();
  const ProgramResult whole = chat("Thanks\nWhat is your favorite color?\n");
  EXPECT_EQ(chat("Thanks\n/save " + path + "\n").err, "");
  const ProgramResult continued = chat("/load " + path + "\nWhat is your favorite color?\n");
  EXPECT_EQ("You are welcome!\n" + continued.out, whole.out);
  folder.file("talk.json", R"({"system":"","thinking":"off","turns":[{"user":1}]})");
  EXPECT_NE(chat("/load " + path + "\n").err.find("/save"), std::string::npos);
}

TEST(Chat, CommandsTakeEffect) {
  const ProgramResult result = chat(
      "/system You answer briefly and clearly.\n/draft off\nWhat is the capital of Bolivia?\n"
      "/thinking 75\n/seed 3\n/help\n");
  EXPECT_TRUE(result.out.starts_with("The capital of Bolivia is Sucre.\n")) << result.out;
  EXPECT_NE(result.out.find("/thinking"), std::string::npos);
}

TEST(Chat, CtrlCStopsTheAnswerAndKeepsTheSession) {
  const ProgramResult result = run_program(
      ProgramRun{.arguments = {"chat", "--temperature", "0", "--draft", "off", "--threads", "1"},
                 .input = "Tell me a story about a shy bear.\n/stats\n/clear\nThanks\n",
                 .signal_after = " "});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("interrupted"), std::string::npos) << result.out;
  EXPECT_TRUE(result.out.ends_with("You are welcome!\n")) << result.out;
}

TEST(Chat, OutputThatCannotBeWrittenEndsIt) {
  expect_refused(run_program(ProgramRun{
                     .arguments = {"chat"}, .input = "Thanks\nThanks\n", .output = Stdout::kFull}),
                 "standard output cannot be written");
}

}  // namespace
}  // namespace peregrine::test
