// peregrine eplb: files in, placements out.
#include <nlohmann/json.hpp>

#include "program.h"

namespace peregrine::test {
namespace {

TEST(EplbCommand, PlansFromCsvAndJson) {
  const TempFolder folder;
  const std::string csv = folder.file("c.csv",
                                      "90,132,40,61,104,165,39,4,73,56,183,86\n"
                                      "20,107,104,64,19,197,187,157,172,86,16,27\n");
  const ProgramResult json =
      run_program({"eplb", "plan", "--counts", csv, "--ranks", "8", "--redundant", "4", "--nodes",
                   "2", "--groups", "4", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto plan = nlohmann::json::parse(json.out);
  EXPECT_EQ(plan["slots"], 16);
  EXPECT_EQ(plan["layers"][1]["expert_of_slot"],
            (std::vector<int>{7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}));
  const ProgramResult text = run_program({"eplb", "plan", "--counts", csv, "--ranks", "4"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("2 layers of 12 experts in 12 slots on 4 ranks"), std::string::npos);
  EXPECT_NE(text.out.find("with one copy each, in order"), std::string::npos);
}

TEST(EplbCommand, RefusesInOneSentence) {
  const TempFolder folder;
  const std::string ragged = folder.file("ragged.csv", "1,2\n3\n");
  expect_refused(run_program({"eplb", "plan", "--counts", ragged, "--ranks", "2"}),
                 "layer 1 has 1 experts, expected 2");
  expect_refused(run_program({"eplb", "plan", "--counts", "/nonexistent", "--ranks", "2"}),
                 "cannot read counts (No such file or directory)");
  const std::string odd = folder.file("odd.csv", "1,2,3\n");
  expect_refused(run_program({"eplb", "plan", "--counts", odd, "--ranks", "2"}),
                 "3 replicas on 2 ranks");
}

TEST(EplbCommand, RecordsWhatTheRouterChose) {
  const TempFolder folder;
  const std::string prompts =
      folder.file("p.jsonl", "{\"domain\": \"story\", \"user\": \"Tell me a story.\"}\n");
  const ProgramResult result =
      run_program({"eplb", "record", "--prompts", prompts, "--max-tokens", "3", "--model", kTiny});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto recorded = nlohmann::json::parse(result.out);
  ASSERT_EQ(recorded["counts"].size(), 10u);
  for (const auto& layer : recorded["counts"]) {
    int64_t sum = 0;
    for (const auto& count : layer) sum += count.get<int64_t>();
    EXPECT_EQ(sum, recorded["tokens"].get<int64_t>() * 4);  // four experts a token
  }
}

}  // namespace
}  // namespace peregrine::test
