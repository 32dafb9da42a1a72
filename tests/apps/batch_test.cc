// batch: every line of the input gets exactly one result, whatever ends the run in between.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "program.h"

namespace peregrine::test {
namespace {

using Json = nlohmann::json;

std::string chat_line(const std::string& id, const std::string& text, int max_tokens) {
  const Json line = {{"custom_id", id},
                     {"method", "POST"},
                     {"url", "/v1/chat/completions"},
                     {"body",
                      {{"messages", {{{"role", "user"}, {"content", text}}}},
                       {"thinking", {{"type", "disabled"}}},
                       {"temperature", 0},
                       {"max_tokens", max_tokens}}}};
  return line.dump() + "\n";
}

// Short and long answers and lines that fail, mixed.
std::string mixed_input(int lines) {
  std::mt19937 random(5);
  std::string input;
  for (int i = 0; i < lines; ++i) {
    const std::string id = "r" + std::to_string(i);
    if (i % 10 == 3) {
      input += "no json " + id + "\n";
    } else {
      input += chat_line(id, "What is " + std::to_string(random() % 500) + " + 7?",
                         static_cast<int>(4 + random() % 12));
    }
  }
  return input;
}

std::vector<Json> results_of(const std::string& text) {
  std::vector<Json> results;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) results.push_back(Json::parse(line));
  return results;
}

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<int> line_numbers(const std::vector<Json>& results) {
  std::vector<int> numbers;
  for (const Json& result : results)
    numbers.push_back(
        std::stoi(result["id"].get<std::string>().substr(std::string("batch_req_").size())));
  return numbers;
}

std::vector<int> one_to(int count) {
  std::vector<int> numbers;
  for (int i = 1; i <= count; ++i) numbers.push_back(i);
  return numbers;
}

std::string answer_of(const Json& result) {
  return result["response"]["body"]["choices"][0]["message"]["content"];
}

// Starts the program and kills it with SIGKILL once `file` has grown by `bytes`, and `pause_us`
// later. True: it was killed; false: it ended before.
bool run_and_kill(const std::vector<std::string>& arguments, const std::string& file,
                  uintmax_t bytes, int pause_us) {
  std::error_code missing;
  const auto size = [&] {
    const auto now = std::filesystem::file_size(file, missing);
    return missing ? 0 : now;
  };
  const uintmax_t before = size();
  std::vector<char*> argv{const_cast<char*>(PEREGRINE_PROGRAM)};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), 2);
    execv(PEREGRINE_PROGRAM, argv.data());
    _exit(127);
  }
  int status = 0;
  while (size() < before + bytes) {
    if (waitpid(child, &status, WNOHANG) == child) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

TEST(Batch, AnswersAndRefusesLineByLine) {
  const TempFolder folder;
  std::string input = chat_line("good", "Hi", 5);
  input += "no json\n\n";
  input += chat_line("good", "Hi", 5);
  input += R"({"custom_id":"url","method":"POST","url":"/v1/embeddings","body":{}})"
           "\n";
  input += R"({"custom_id":"field","method":"POST","url":"/v1/chat/completions","body":)"
           R"({"messages":[{"role":"user","content":"Hi"}],"temperature":9}})"
           "\n";
  input += chat_line("long", std::string(4000, 'z'), 5);
  input += "{\"custom_id\":\"\xff\"}\n";
  input += R"({"custom_id":"text","method":"POST","url":"/v1/completions","body":)"
           R"({"prompt":"Once upon a time","max_tokens":4,"temperature":0}})"
           "\n";
  input += chat_line("last", "Hi", 5);
  const ProgramResult result =
      run_program({"batch", "-", "-", "--context", "512", "--threads", "1"}, input);
  EXPECT_EQ(result.code, 3) << result.err;
  const std::vector<Json> results = results_of(result.out);
  ASSERT_EQ(line_numbers(results), (std::vector<int>{1, 2, 4, 5, 6, 7, 8, 9, 10})) << result.out;
  EXPECT_EQ(results[0]["custom_id"], "good");
  EXPECT_EQ(results[0]["error"], nullptr);
  EXPECT_EQ(results[0]["response"]["status_code"], 200);
  EXPECT_EQ(results[0]["response"]["body"]["object"], "chat.completion");
  EXPECT_EQ(results[1]["custom_id"], nullptr);
  EXPECT_EQ(results[1]["response"], nullptr);
  EXPECT_EQ(results[1]["error"]["code"], "invalid_json_line");
  EXPECT_EQ(results[2]["error"]["code"], "duplicate_custom_id");
  EXPECT_EQ(results[3]["error"]["code"], "invalid_url");
  EXPECT_EQ(results[4]["response"]["status_code"], 400);
  EXPECT_EQ(results[4]["response"]["body"]["error"]["param"], "temperature");
  EXPECT_EQ(results[5]["response"]["body"]["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(results[6]["error"]["code"], "invalid_json_line");
  EXPECT_EQ(results[7]["custom_id"], "text");
  EXPECT_EQ(results[7]["response"]["body"]["object"], "text_completion");
  EXPECT_EQ(results[8]["custom_id"], "last");
  EXPECT_EQ(answer_of(results[8]), answer_of(results[0]));
}

TEST(Batch, EveryOrderAndScheduleGivesTheSameAnswers) {
  const TempFolder folder;
  const std::string input = folder.file("in.jsonl", mixed_input(40));
  std::map<int, std::string> first;
  for (const std::string order : {"input", "completed"}) {
    for (const std::string schedule : {"arrival", "longest", "prefix"}) {
      const ProgramResult result =
          run_program({"batch", input, "-", "--order", order, "--schedule", schedule,
                       "--max-running", "4", "--context", "512"});
      ASSERT_EQ(result.code, 3) << result.err;
      const std::vector<Json> results = results_of(result.out);
      std::vector<int> numbers = line_numbers(results);
      std::map<int, std::string> answers;
      for (size_t i = 0; i < results.size(); ++i)
        if (!results[i]["response"].is_null()) answers[numbers[i]] = answer_of(results[i]);
      if (order == "completed") std::sort(numbers.begin(), numbers.end());
      EXPECT_EQ(numbers, one_to(40)) << order << " " << schedule;
      if (first.empty()) first = answers;
      EXPECT_EQ(answers, first) << order << " " << schedule;
    }
  }
  EXPECT_EQ(first.size(), 36u);
}

TEST(Batch, KilledAtAnyMomentEveryLineHasOneResult) {
  const int kLines = 120;
  for (const std::string order : {"input", "completed"}) {
    const TempFolder folder;
    const std::string input = folder.file("in.jsonl", mixed_input(kLines));
    const std::string output = (folder.path() / "out.jsonl").string();
    const std::vector<std::string> command = {"batch",         input, output,      "--order", order,
                                              "--max-running", "4",   "--context", "512"};
    std::mt19937 random(11);
    int kills = 0;
    while (run_and_kill(command, output, 1 + random() % 9000, static_cast<int>(random() % 30000)))
      ++kills;
    EXPECT_GE(kills, 3);
    // What a kill in the middle of a write leaves.
    const std::string whole = content_of(output);
    folder.file("out.jsonl", whole.substr(0, whole.size() - 40));
    const ProgramResult last = run_program(command);
    EXPECT_EQ(last.code, 3) << last.err;
    std::vector<int> numbers = line_numbers(results_of(content_of(output)));
    if (order == "completed") std::sort(numbers.begin(), numbers.end());
    EXPECT_EQ(numbers, one_to(kLines)) << "after " << kills << " kills, order " << order;
    // Nothing is left to do: the file stays as it is, the exit code as well.
    const std::string before = content_of(output);
    EXPECT_EQ(run_program(command).code, 3);
    EXPECT_EQ(content_of(output), before);
  }
}

TEST(Batch, CtrlCLeavesWholeResultsAndTheNextRunGoesOn) {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += chat_line("r" + std::to_string(i), "Count to 90.", 12);
  const std::string input = folder.file("in.jsonl", lines);
  for (const std::string grace : {"60", "0"}) {
    const ProgramResult stopped = run_program(
        ProgramRun{.arguments = {"batch", input, "-", "--max-running", "2", "--grace", grace},
                   .signal_after = "\"batch_req_3\""});
    EXPECT_EQ(stopped.code, 130) << stopped.err;
    EXPECT_NE(stopped.err.find("the same command goes on"), std::string::npos) << stopped.err;
    const std::vector<Json> results = results_of(stopped.out);
    const int done = static_cast<int>(results.size());
    EXPECT_EQ(line_numbers(results), one_to(done));
    EXPECT_GE(done, 3);
    EXPECT_LT(done, 200);
    for (const Json& result : results) EXPECT_EQ(result["response"]["status_code"], 200);

    const std::string output = folder.file("out.jsonl", stopped.out);
    const ProgramResult rest = run_program({"batch", input, output});
    EXPECT_EQ(rest.code, 0) << rest.err;
    EXPECT_NE(rest.err.find(std::to_string(done) + " were done before"), std::string::npos)
        << rest.err;
    EXPECT_EQ(line_numbers(results_of(content_of(output))), one_to(200));
  }
}

TEST(Batch, MemoryStaysBoundedWhateverTheNumberOfLines) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have memory of their own";
#endif
  const TempFolder folder;
  const auto peak = [&](int lines) {
    std::string input = chat_line("first", "Hi", 100);  // all others wait behind it
    for (int i = 0; i < lines; ++i)
      input += R"({"custom_id":"request )" + std::to_string(i) + R"(","body":")" +
               std::string(200, 'x') + "\"}\n";
    const std::string path = folder.file("in.jsonl", input);
    const ProgramResult result =
        run_program({"batch", path, "/dev/null", "--context", "512", "--kv-bytes", "8M"});
    EXPECT_EQ(result.code, 3) << result.err;
    return result.peak_bytes;
  };
  // 16 bytes of each custom_id in a table that is at most three quarters full and doubles.
  const int64_t few = peak(10), many = peak(200000);
  EXPECT_LE(many - few, 24 << 20) << few << " " << many;
}

TEST(Batch, WhatCannotWorkIsOneSentence) {
  const TempFolder folder;
  const std::string input = folder.file("in.jsonl", chat_line("a", "Hi", 3));
  const std::string other = folder.file("notes.txt", "dear diary\n");
  const std::string output = (folder.path() / "out.jsonl").string();
  expect_refused(run_program({"batch", input, "/dev/full"}), "/dev/full: cannot be written");
  expect_refused(run_program({"batch", input, input}), "is the input as well");
  expect_refused(run_program({"batch", input, other}), "line 1 is no batch result");
  expect_refused(run_program({"batch", input, "/nowhere/out"}), "/nowhere/out: cannot be opened");
  expect_refused(run_program({"batch", "/nowhere/in", output}), "/nowhere/in: cannot be opened");
  expect_refused(run_program({"batch", folder.path().string(), output}), "is a directory");
  expect_refused(run_program({"batch", input}), "output is required");
  EXPECT_EQ(content_of(input), chat_line("a", "Hi", 3));
  EXPECT_EQ(content_of(other), "dear diary\n");
  EXPECT_EQ(run_program({"batch", input, other, "--overwrite"}).code, 0);
  EXPECT_EQ(line_numbers(results_of(content_of(other))), one_to(1));
  const std::string changed = folder.file("in.jsonl", chat_line("b", "Hi", 3));
  expect_refused(run_program({"batch", changed, other}), "the input has changed");
}

}  // namespace
}  // namespace peregrine::test
