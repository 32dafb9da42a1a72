// peregrine bench at sizes that take a moment: the shape of its report, not its figures.
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/inventory.h"
#include "checkpoint/synthetic.h"
#include "program.h"
#include "support/fixtures.h"

namespace peregrine::test {
namespace {

using Json = nlohmann::json;

TEST(Bench, DecodeAndPrefillOnSyntheticWeights) {
  const ProgramResult result = run_program(
      {"bench", "--synthetic", "--dim", "256", "--heads", "8", "--expert-width", "128", "--experts",
       "8", "--vocab", "512", "--repetitions", "2", "--prefill-tokens", "32", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json report = Json::parse(result.out);
  const Json& rows = report["decode"]["rows"];
  ASSERT_EQ(rows.size(), 4u);
  const int counts[] = {1, 2, 4, 8};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows[i]["rows"], counts[i]);
    EXPECT_GT(rows[i]["bandwidth_share"].get<double>(), 0);
  }
  // One row reads what the inventory says; more rows read more experts.
  const ModelConfig config =
      synthetic_config({.experts = 8, .dim = 256, .heads = 8, .expert_width = 128, .vocab = 512});
  EXPECT_NEAR(rows[0]["weight_bytes"].get<double>(),
              static_cast<double>(decode_bytes_per_token(config)), 2);
  EXPECT_GT(rows[3]["weight_bytes"].get<int64_t>(), rows[0]["weight_bytes"].get<int64_t>());
  EXPECT_GT(report["prefill"]["flop_per_second"].get<double>(), 0);
}

TEST(Bench, SpeculationByDomain) {
  const TempFolder folder;
  const std::string prompts = folder.file(
      "prompts.jsonl",
      "{\"domain\": \"talk\", \"user\": \"Thanks\"}\n"
      "{\"domain\": \"arithmetic\", \"user\": \"What is 12 + 30?\", \"thinking\": 75}\n");
  const ProgramResult result = run_program({"bench", "speculation", "--prompts", prompts,
                                            "--repetitions", "1", "--max-tokens", "24", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json domains = Json::parse(result.out)["speculation"]["domains"];
  ASSERT_EQ(domains.size(), 6u);  // two domains and all, greedy and at temperature 1
  for (const Json& domain : domains) {
    EXPECT_GE(domain["acceptance_length"].get<double>(), 1);
    EXPECT_GT(domain["plain_tokens_per_second"].get<double>(), 0);
  }
  expect_refused(run_program({"bench", "speculation", "--prompts",
                              folder.file("bad.jsonl", "{\"domain\": \"x\"}\n")}),
                 "bad.jsonl:1");
}

TEST(BenchClusterSim, MarksEveryOutputAsSimulated) {
  const std::vector<std::string> words = {
      "bench", "cluster-sim", "--zipf", "1", "--layers", "2", "--ranks", "8", "64", "--rows", "32"};
  const ProgramResult text = run_program(words);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("SIMULATION, nothing here was measured"), std::string::npos) << text.out;
  auto with_json = words;
  with_json.push_back("--json");
  const Json result = Json::parse(run_program(with_json).out);
  EXPECT_EQ(result["simulation"], true);
  ASSERT_EQ(result["results"].size(), 2u);
  for (const Json& row : result["results"]) {
    EXPECT_GT(row["plain"]["simulated_step_ms"].get<double>(), 0);
    EXPECT_LT(row["eplb"]["simulated_slowest_over_mean"].get<double>(),
              row["plain"]["simulated_slowest_over_mean"].get<double>());
  }
  expect_refused(run_program({"bench", "cluster-sim", "--ranks", "7"}), "384 experts on 7 ranks");
}

TEST(Synthetic, ReleasedConfigIsTheReleasedConfig) {
  const Inventory inventory = take_inventory(released_config());
  EXPECT_EQ(inventory.tensors, 96085);
  EXPECT_EQ(inventory.bytes, 510286023000);
  released_config().validate("released");
}

TEST(Synthetic, TensorsFitTheTableAndRepeat) {
  const ModelConfig config = synthetic_config(
      {.layers = 3, .experts = 8, .dim = 256, .heads = 8, .expert_width = 128, .vocab = 512});
  const auto one = make_synthetic_source(config, 5), same = make_synthetic_source(config, 5),
             other = make_synthetic_source(config, 6);
  check_tensors(config, *one, "synthetic");
  const TensorView *a = one->find("head.weight"), *b = same->find("head.weight"),
                   *c = other->find("head.weight");
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(std::memcmp(a->data, b->data, a->bytes), 0);
  EXPECT_NE(std::memcmp(a->data, c->data, a->bytes), 0);
}

}  // namespace
}  // namespace peregrine::test
