// generate and batch under mpirun: the same answers as one process, and an end with a sentence when
// a rank dies or falls silent.
#include <signal.h>

#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <thread>

#include "program.h"
#include "server/http_client.h"

namespace peregrine::test {
namespace {

using Json = nlohmann::json;

#ifdef PEREGRINE_MPI
constexpr bool kHaveMpi = true;
#else
constexpr bool kHaveMpi = false;
#endif

// A command under mpirun that runs beside the test.
class RankedRun {
 public:
  RankedRun(int ranks, std::vector<std::string> arguments, const TempFolder& folder)
      : out_(folder.path() / "ranks.out"), err_(folder.path() / "ranks.err") {
    std::vector<std::string> words = {"mpirun",
                                      "--allow-run-as-root",
                                      "--oversubscribe",
                                      "--mca",
                                      "btl_vader_single_copy_mechanism",
                                      "none",
                                      "-n",
                                      std::to_string(ranks),
                                      PEREGRINE_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    child_ = fork();
    if (child_ == 0) {
      dup2(open("/dev/null", O_RDONLY), 0);
      dup2(open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
      dup2(open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
      execvp(argv[0], argv.data());
      _exit(127);
    }
  }

  // Processes of the ranks, by age: rank order.
  std::vector<pid_t> ranks() const {
    std::ifstream file("/proc/" + std::to_string(child_) + "/task/" + std::to_string(child_) +
                       "/children");
    std::vector<pid_t> pids;
    for (pid_t pid; file >> pid;) pids.push_back(pid);
    return pids;
  }

  // The port that `serve` prints; 0 when it ends before.
  int wait_for_port() const {
    std::smatch match;
    for (std::string text; kill(child_, 0) == 0; text = read(out_)) {
      if (std::regex_search(text, match, std::regex("http://127.0.0.1:([0-9]+)\n")))
        return std::stoi(match[1]);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return 0;
  }
  void signal_mpirun(int number) const { kill(child_, number); }

  ProgramResult wait() {
    int status = 0;
    waitpid(child_, &status, 0);
    ProgramResult result;
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result.out = read(out_);
    result.err = read(err_);
    return result;
  }

  static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path out_, err_;
  pid_t child_ = -1;
};

ProgramResult run_ranks(int ranks, std::vector<std::string> arguments, const TempFolder& folder) {
  return RankedRun(ranks, std::move(arguments), folder).wait();
}

// Mixed requests: chat and completions, greedy and sampled, short and long.
std::string requests(int count, int max_tokens) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    Json body = {{"max_tokens", 4 + (i * 7) % max_tokens},
                 {"seed", i},
                 {"temperature", i % 2 == 0 ? 0.0 : 0.8}};
    std::string text = "Tell me about number " + std::to_string(i) + ".";
    for (int k = 0; k < i % 5; ++k) text += " Then tell me of the fox, the river and the boy.";
    const bool chat = i % 3 != 0;
    if (chat) {
      body["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
      body["logprobs"] = true;
    } else {
      body["prompt"] = text;
      body["logprobs"] = 1;
    }
    lines += Json{{"custom_id", "r" + std::to_string(i)},
                  {"method", "POST"},
                  {"url", chat ? "/v1/chat/completions" : "/v1/completions"},
                  {"body", body}}
                 .dump() +
             "\n";
  }
  return lines;
}

// What was answered, without ids and times.
std::vector<std::pair<std::string, Json>> answers(const std::filesystem::path& file) {
  std::vector<std::pair<std::string, Json>> list;
  std::istringstream lines(RankedRun::read(file));
  for (std::string line; std::getline(lines, line);) {
    const Json result = Json::parse(line);
    list.emplace_back(result["custom_id"], result["response"]["body"].value("choices", Json()));
  }
  return list;
}

TEST(RankedBatch, AnswersEqualOneProcess) {
  if (!kHaveMpi) GTEST_SKIP() << "built without MPI";
  const TempFolder folder;
  const std::string in = folder.file("in.jsonl", requests(32, 24));
  const auto arguments = [&](const std::string& out) {
    return std::vector<std::string>{"batch",
                                    in,
                                    (folder.path() / out).string(),
                                    "--model",
                                    kTiny,
                                    "--prefix-cache",
                                    "off",
                                    "--prefill",
                                    "exact",
                                    "--context",
                                    "512",
                                    "--draft",
                                    "4",
                                    "--max-running",
                                    "8"};
  };
  const ProgramResult one = run_program(arguments("one.jsonl"));
  ASSERT_EQ(one.code, 0) << one.err;
  const auto expected = answers(folder.path() / "one.jsonl");
  ASSERT_EQ(expected.size(), 32u);
  for (const auto& [id, choices] : expected) ASSERT_TRUE(choices.is_array()) << id;
  struct Case {
    int ranks;
    std::vector<std::string> flags;
  };
  // On four ranks experts move all the time.
  for (const Case& c :
       {Case{2, {"--ep", "2", "--dp", "2"}},
        Case{4, {"--redundant-experts", "4", "--eplb-window", "2", "--eplb-interval", "4"}},
        Case{2, {"--tp", "2"}}, Case{4, {"--tp", "4"}}}) {
    const std::string out = "ranks" + std::to_string(c.ranks) + c.flags[0] + ".jsonl";
    auto words = arguments(out);
    words.insert(words.end(), c.flags.begin(), c.flags.end());
    const ProgramResult several = run_ranks(c.ranks, words, folder);
    ASSERT_EQ(several.code, 0) << several.err;
    EXPECT_EQ(answers(folder.path() / out), expected) << out;
    EXPECT_EQ(several.err.find("experts: re-arranged") != std::string::npos,
              c.flags[0] == "--redundant-experts")
        << several.err;
    EXPECT_FALSE(std::filesystem::exists(folder.path() / (out + ".part0")));
  }
}

TEST(RankedGenerate, AnswerEqualsOneProcess) {
  if (!kHaveMpi) GTEST_SKIP() << "built without MPI";
  const TempFolder folder;
  const std::vector<std::string> arguments = {
      "generate",   "--chat",  "Tell me a story about a fox.",
      "--model",    kTiny,     "--max-tokens",
      "24",         "--draft", "4",
      "--seed",     "3",       "--json",
      "--logprobs", "2"};
  const ProgramResult one = run_program(arguments);
  ASSERT_EQ(one.code, 0) << one.err;
  const ProgramResult several = run_ranks(3, arguments, folder);
  ASSERT_EQ(several.code, 0) << several.err;
  const Json expected = Json::parse(one.out), found = Json::parse(several.out);
  for (const char* key : {"text", "ids", "finish_reason", "logprobs"})
    EXPECT_EQ(found[key], expected[key]) << key;
  EXPECT_TRUE(expected.contains("logprobs")) << one.out;
}

TEST(RankedBatch, RefusesInOneSentence) {
  const TempFolder folder;
  const std::string in = folder.file("in.jsonl", requests(1, 4));
  const std::string out = (folder.path() / "out.jsonl").string();
  expect_refused(run_program({"batch", in, out, "--model", kTiny, "--ep", "2"}),
                 "--ep 2 with 1 rank(s): expected 1 or as many as mpirun -n starts");
  expect_refused(run_program({"serve", "--model", kTiny, "--dp", "2"}),
                 "--dp 2 with 1 rank(s): this command can use 1");
  expect_refused(run_program({"generate", "x", "--model", kTiny, "--dp", "2"}),
                 "--dp 2 with 1 rank(s): this command can use 1");
  expect_refused(run_program({"generate", "x", "--model", kTiny, "--tp", "2"}),
                 "--tp 2 with 1 rank(s): expected 1 or as many as mpirun -n starts");
  if (!kHaveMpi) return;
  const ProgramResult mixed =
      run_ranks(2, {"generate", "x", "--model", kTiny, "--tp", "2", "--ep", "1"}, folder);
  EXPECT_NE(mixed.code, 0);
  EXPECT_NE(mixed.err.find("--tp 2 --ep 1 --dp 1: tensor-parallel ranks share the experts and "
                           "answer together, expected --ep 2 --dp 1"),
            std::string::npos)
      << mixed.err;
  folder.file("out.jsonl", "something\n");
  const ProgramResult result = run_ranks(2, {"batch", in, out, "--model", kTiny}, folder);
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.err.find("holds results already"), std::string::npos) << result.err;
}

// -- serve ---------------------------------------------------------------------------------------

std::vector<std::string> serve_arguments() {
  return {"serve", "--model",       kTiny, "--port",          "0",       "--prefill",
          "exact", "--context",     "512", "--max-running",   "4",       "--prefix-cache",
          "off",   "--draft",       "4",   "--kv-bytes",      "8388608", "--redundant-experts",
          "2",     "--eplb-window", "2",   "--eplb-interval", "4"};
}

std::string completion(int i, int max_tokens) {
  Json body = {{"prompt", "Tell me about number " + std::to_string(i) + "."},
               {"max_tokens", max_tokens},
               {"seed", i},
               {"temperature", i % 2 == 0 ? 0.0 : 0.8},
               {"logprobs", 1}};
  if (i % 3 == 0) body["stop"] = "e";
  return body.dump();
}

TEST(RankedServe, AnswersEqualOneProcessAndAllRanksEndInOrder) {
  if (!kHaveMpi) GTEST_SKIP() << "built without MPI";
  std::vector<std::vector<Json>> answers;
  for (const int ranks : {1, 2}) {
    const TempFolder folder;
    RankedRun run(ranks, serve_arguments(), folder);
    const int port = run.wait_for_port();
    ASSERT_GT(port, 0) << run.wait().err;
    std::vector<Json> found(6);
    std::vector<std::thread> clients;
    for (int i = 0; i < 6; ++i)
      clients.emplace_back([&found, port, i] {
        const Json answer = Client(port).post("/v1/completions", completion(i, 12)).json();
        found[static_cast<size_t>(i)] = {answer["choices"], answer["usage"]};
      });
    for (std::thread& client : clients) client.join();
    answers.push_back(found);
    const std::string metrics = Client(port).get("/metrics").body;
    if (ranks == 2) {
      EXPECT_NE(metrics.find("peregrine_rank_requests_total{rank=\"1\"} 3"), metrics.npos)
          << metrics;
      EXPECT_NE(metrics.find("peregrine_experts_slowest_over_mean{layer=\"0\"}"), metrics.npos);
    }
    // A request that runs when the end is asked for is answered.
    Client last(port);
    last.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
              std::to_string(completion(1, 100).size()) + "\r\n\r\n" + completion(1, 100));
    while (Client(port).get("/metrics").body.find("peregrine_running_sequences 1") ==
           std::string::npos) {
    }
    run.signal_mpirun(SIGUSR1);
    EXPECT_EQ(last.receive().status, 200);
    const ProgramResult end = run.wait();
    EXPECT_EQ(end.code, 0) << end.err;
  }
  for (const Json& answer : answers[0]) EXPECT_TRUE(answer[0].is_array()) << answer;
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(RankedServe, KilledRankEndsTheServer) {
  if (!kHaveMpi) GTEST_SKIP() << "built without MPI";
  const TempFolder folder;
  RankedRun run(2, serve_arguments(), folder);
  const int port = run.wait_for_port();
  ASSERT_GT(port, 0) << run.wait().err;
  const std::vector<pid_t> ranks = run.ranks();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  const ProgramResult result = run.wait();
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.err.find("peregrine: rank 0 of 2 stopped in step"), std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("rank 1 has died"), std::string::npos) << result.err;
  EXPECT_THROW(Client{port}, std::runtime_error);
}

// -- failure -------------------------------------------------------------------------------------

enum class Moment { kPrefill, kDecode, kMovement };

// Sends `signal_number` to rank 1 while it works; what the run says then.
ProgramResult disturb(int signal_number, Moment moment, const TempFolder& folder,
                      const std::string& tp = "1") {
  // First a short request a rank, whose result shows that steps run. Prefill: then long prompts.
  // Decode: then long answers.
  std::string lines;
  for (int i = 0; i < 4; ++i) {
    std::string prompt = "Once";
    if (moment == Moment::kPrefill && i >= 2)
      for (int k = 0; k < 1500; ++k) prompt += " upon a time there was a fox";
    lines +=
        Json{{"custom_id", std::to_string(i)},
             {"method", "POST"},
             {"url", "/v1/completions"},
             {"body", {{"prompt", prompt}, {"max_tokens", i < 2 ? 1 : 4000}, {"ignore_eos", true}}}}
            .dump() +
        "\n";
  }
  const std::string in = folder.file("in.jsonl", lines);
  // Movement: a placement is planned or its experts are read at almost any time.
  RankedRun run(2,
                {"batch", in, (folder.path() / "out.jsonl").string(), "--model", kTiny, "--tp", tp,
                 "--rank-timeout", signal_number == SIGKILL ? "8" : "4", "--eplb-window",
                 moment == Moment::kMovement ? "1" : "1000", "--eplb-interval",
                 moment == Moment::kMovement ? "1" : "0"},
                folder);
  const auto part = folder.path() / (tp == "1" ? "out.jsonl.part1" : "out.jsonl.part0");
  while (RankedRun::read(part).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const std::vector<pid_t> ranks = run.ranks();
  EXPECT_EQ(ranks.size(), 2u);
  if (ranks.size() == 2) kill(ranks[1], signal_number);
  return run.wait();
}

TEST(RankedBatch, KilledRankEndsTheRunWithASentence) {
  if (!kHaveMpi) GTEST_SKIP() << "built without MPI";
  for (const auto& [moment, tp] : {std::pair{Moment::kPrefill, "1"},
                                   {Moment::kDecode, "1"},
                                   {Moment::kMovement, "1"},
                                   {Moment::kPrefill, "2"},
                                   {Moment::kDecode, "2"}}) {
    const TempFolder folder;
    const ProgramResult result = disturb(SIGKILL, moment, folder, tp);
    EXPECT_NE(result.code, 0);
    EXPECT_NE(result.err.find("peregrine: rank 0 of 2 stopped in step"), std::string::npos)
        << result.err;
    // Noticed while it waits for that rank, or when mpirun ends it: then it waits for nothing.
    EXPECT_NE(result.err.find(": rank 1 has died"), std::string::npos) << result.err;
  }
}

TEST(RankedBatch, SilentRankEndsTheRunWithASentence) {
  if (!kHaveMpi) GTEST_SKIP() << "built without MPI";
  for (const Moment moment : {Moment::kPrefill, Moment::kDecode}) {
    const TempFolder folder;
    const ProgramResult result = disturb(SIGSTOP, moment, folder);
    EXPECT_NE(result.code, 0);
    // It may have stopped after its own part, before it took a long one of rank 0.
    EXPECT_TRUE(result.err.find(": rank 1 has not sent its part of \"") != std::string::npos ||
                result.err.find(": rank 1 has not taken this rank's part of \"") !=
                    std::string::npos)
        << result.err;
  }
}

}  // namespace
}  // namespace peregrine::test
