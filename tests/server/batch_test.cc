// The parts of a batch run: lines, input, journal, pool.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "peregrine/error.h"
#include "server/batch_input.h"
#include "server/batch_journal.h"
#include "server/batch_line.h"
#include "server/batch_pool.h"
#include "server/fingerprint_set.h"

namespace peregrine::test {
namespace {

namespace fs = std::filesystem;

class BatchFiles : public testing::Test {
 protected:
  BatchFiles() {
    std::string name = (fs::temp_directory_path() / "peregrine-batch-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~BatchFiles() override { fs::remove_all(folder_); }
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return path(name);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string content(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name), std::ios::binary).rdbuf();
    return text.str();
  }

 private:
  fs::path folder_;
};

std::string line_of(const std::string& id, const std::string& body = R"({"messages":[]})") {
  return R"({"custom_id":)" + id + R"(,"method":"POST","url":"/v1/chat/completions","body":)" +
         body + "}";
}

// Whose sentence holds `words`; of nothing else.
template <typename F>
void expect_error(F work, const std::string& words) {
  try {
    work();
    ADD_FAILURE() << "no error, expected: " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(BatchLine, ReadsARequest) {
  const BatchLine line = parse_batch_line(
      line_of("\"a\\u00e9\"", R"({"max_tokens":7,"messages":[{"role":"user","content":"x"}]})"));
  EXPECT_EQ(line.problem, "");
  EXPECT_EQ(line.custom_id, "a\u00e9");
  EXPECT_EQ(line.url, "/v1/chat/completions");
  EXPECT_EQ(line.wanted_tokens, 7);
  // The conversation in front, the rest as it was.
  EXPECT_EQ(line.body, R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 7})");
}

TEST(BatchLine, SaysWhatIsWrong) {
  const struct {
    std::string text, code, words;
  } cases[] = {
      {"", "invalid_json_line", "no JSON document"},
      {"[1]", "invalid_json_line", "the line is an array, expected an object"},
      {"{\"custom_id\":\"\xff\"}", "invalid_json_line", "not valid UTF-8"},
      {"{}", "invalid_custom_id", "custom_id is missing"},
      {line_of("7"), "invalid_custom_id", "custom_id is an integer"},
      {line_of("\"\""), "invalid_custom_id", "custom_id is \"\""},
      {R"({"custom_id":"a"})", "invalid_method", "method is missing"},
      {R"({"custom_id":"a","method":"GET"})", "invalid_method", "method is \"GET\""},
      {R"({"custom_id":"a","method":"POST","url":"/v1/embeddings"})", "invalid_url",
       "url is \"/v1/embeddings\""},
      {line_of("\"a\"", "[]"), "invalid_body", "body is an array"},
      {line_of("\"a\"", R"({"stream":true})"), "invalid_body", "body.stream is true"},
  };
  for (const auto& c : cases) {
    const BatchLine line = parse_batch_line(c.text);
    EXPECT_EQ(line.code, c.code) << c.text;
    EXPECT_NE(line.problem.find(c.words), std::string::npos) << line.problem;
  }
}

TEST(BatchLine, ResultsTellTheirLineAndRequest) {
  BatchLine request;
  request.custom_id = "q\"\\\n\u2603";
  const auto head_of = [](std::string result) {
    EXPECT_EQ(result.back(), '\n');
    EXPECT_EQ(std::count(result.begin(), result.end(), '\n'), 1);
    result.pop_back();
    return parse_batch_result(result);
  };
  const auto good = head_of(batch_result(17, request, {200, "req_x", R"({"id":"\n"})"}));
  ASSERT_TRUE(good);
  EXPECT_EQ(good->line, 17);
  EXPECT_EQ(good->custom_id, request.custom_id);
  EXPECT_FALSE(good->failed);
  const auto bad = head_of(batch_result(18, request, {400, "req_x", "{}"}));
  ASSERT_TRUE(bad);
  EXPECT_TRUE(bad->failed);
  request = {.code = "invalid_json_line", .problem = "no"};
  const auto refused = head_of(batch_refusal(19, request));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->custom_id, std::nullopt);
  EXPECT_TRUE(refused->failed);
}

TEST(BatchLine, OtherTextIsNoResult) {
  for (const char* text :
       {"", "}", "{}", R"({"id":"batch_req_"})", R"({"id":"batch_req_0","custom_id":null}})",
        R"({"id":"batch_req_1","custom_id":"a})", R"({"id":"batch_req_1","custom_id":"a\})",
        R"({"id":"batch_req_1","custom_id":"a"})", R"({"id":"batch_req_1","custom_id":7,)",
        R"({"id":"batch_req_99999999999999999999","custom_id":null,"response":null})",
        R"({"id":"batch_req_1","custom_id":null,"response":null)"})
    EXPECT_FALSE(parse_batch_result(text)) << text;
}

TEST_F(BatchFiles, InputSkipsBlankLinesAndKeepsNumbers) {
  BatchInput input(file("in", "a\n\n  \nb\r\nlast"));
  EXPECT_EQ(input.count_lines(), 4);  // the line of blanks counts: an estimate of the total
  const std::pair<int64_t, std::string> expected[] = {{1, "a"}, {4, "b"}, {5, "last"}};
  for (const auto& [number, text] : expected) {
    EXPECT_FALSE(input.at_end());
    const auto line = input.next();
    ASSERT_TRUE(line);
    EXPECT_EQ(line->number, number);
    EXPECT_EQ(line->text, text);
  }
  EXPECT_FALSE(input.next());
  EXPECT_TRUE(input.at_end());
}

TEST_F(BatchFiles, InputSkipsALineThatIsTooLong) {
  const std::string longest(kMaxBatchLineBytes, 'x');
  for (const char* end : {"\nafter\n", ""}) {
    BatchInput input(file("in", longest + "\n" + longest + "y" + end));
    auto line = input.next();
    ASSERT_TRUE(line);
    EXPECT_FALSE(line->too_long);
    EXPECT_EQ(line->text.size(), longest.size());
    line = input.next();
    ASSERT_TRUE(line);
    EXPECT_TRUE(line->too_long);
    EXPECT_EQ(line->number, 2);
    line = input.next();
    EXPECT_EQ(line.has_value(), *end != 0);
    if (line) {
      EXPECT_EQ(line->text, "after");
    }
  }
}

TEST_F(BatchFiles, InputOfAPipeComesInPieces) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const int writer = open(path("pipe").c_str(), O_RDWR);
  BatchInput input(path("pipe"));
  EXPECT_EQ(input.count_lines(), 0);
  EXPECT_FALSE(input.next());
  ASSERT_EQ(write(writer, "ab", 2), 2);
  EXPECT_FALSE(input.next());
  EXPECT_FALSE(input.at_end());
  ASSERT_EQ(write(writer, "c\nd", 3), 3);
  EXPECT_EQ(input.next()->text, "abc");
  EXPECT_FALSE(input.next());
  close(writer);
  EXPECT_EQ(input.next()->text, "d");
  EXPECT_TRUE(input.at_end());
}

std::string result_of(int64_t line, const std::string& custom_id, int status = 200) {
  BatchLine request;
  request.custom_id = custom_id;
  return batch_result(line, request, {status, "req_x", "{}"});
}

TEST_F(BatchFiles, JournalCutsATornLineOnly) {
  const std::string good = result_of(3, "c") + result_of(1, "a", 400);
  const std::string torn = result_of(2, "b");
  const std::string input = file("in", "");
  for (size_t bytes = 0; bytes < torn.size(); ++bytes) {
    const std::string output = file("out", good + torn.substr(0, bytes));
    BatchJournal journal(output, input, false);
    EXPECT_EQ(journal.resumed(), 2);
    EXPECT_EQ(journal.resumed_failures(), 1);
    EXPECT_TRUE(journal.done(1, "a"));
    EXPECT_FALSE(journal.done(2, "b"));
    EXPECT_TRUE(journal.done(3, "c"));
    EXPECT_FALSE(journal.done(4, "d"));
    EXPECT_EQ(content("out"), good);
    journal.append(torn);
    EXPECT_EQ(content("out"), good + torn);
  }
}

TEST_F(BatchFiles, JournalReadsMoreThanABufferHolds) {
  std::string all;
  for (int64_t line = 1; line <= 30000; ++line) all += result_of(line, std::to_string(line));
  ASSERT_GT(all.size(), size_t{2} << 20);
  BatchJournal journal(file("out", all), file("in", ""), false);
  EXPECT_EQ(journal.resumed(), 30000);
  for (int64_t line = 1; line <= 30000; ++line)
    ASSERT_TRUE(journal.done(line, std::to_string(line)));
}

TEST_F(BatchFiles, JournalLeavesOtherFilesAlone) {
  const std::string input = file("in", "x");
  for (const std::string text :
       {"a letter", "a letter\n", "{\"id\": 1}\n", "{\"custom_id\":\"a\""}) {
    const std::string output = file("out", text);
    expect_error([&] { BatchJournal(output, input, false); }, "no batch result");
    EXPECT_EQ(content("out"), text);
  }
  expect_error([&] { BatchJournal(input, input, true); }, "is the input as well");
  EXPECT_EQ(content("in"), "x");
  const std::string output = file("out", result_of(1, "a"));
  {
    BatchJournal journal(output, input, false);
    expect_error([&] { BatchJournal(output, input, true); }, "by another run");
    expect_error([&] { journal.done(1, "b"); }, "the input has changed");
    expect_error([&] { journal.done(1, std::nullopt); }, "the input has changed");
  }
  EXPECT_EQ(content("out"), result_of(1, "a"));
  BatchJournal anew(output, input, true);
  EXPECT_EQ(anew.resumed(), 0);
  EXPECT_EQ(content("out"), "");
}

TEST(BatchPool, TakesWhatItsScheduleSays) {
  const auto order = [](BatchSchedule schedule) {
    BatchPool pool(schedule);
    const struct {
      const char* body;
      int64_t tokens;
    } jobs[] = {{"m", 10}, {"b", 300}, {"m", 10}, {"a", 0}, {"c", 20}};
    std::string lines;
    for (int64_t line = 0; const auto& job : jobs) {
      BatchJob next{.line = ++line};
      next.request.body = job.body;
      next.request.wanted_tokens = job.tokens;
      pool.add(std::move(next));
    }
    lines += std::to_string(pool.take().line);
    BatchJob late{.line = 6};
    late.request.body = "aa";
    late.request.wanted_tokens = 5;
    pool.add(std::move(late));
    while (!pool.empty()) lines += std::to_string(pool.take().line);
    return lines;
  };
  EXPECT_EQ(order(BatchSchedule::kArrival), "123456");
  EXPECT_EQ(order(BatchSchedule::kLongest), "425136");
  EXPECT_EQ(order(BatchSchedule::kPrefix), "462513");
}

TEST(BatchPool, PrefixGoesRoundInsteadOfStarving) {
  BatchPool pool(BatchSchedule::kPrefix);
  const auto add = [&](int64_t line, const char* body) {
    BatchJob job{.line = line};
    job.request.body = body;
    pool.add(std::move(job));
  };
  add(1, "z");
  add(2, "m");
  EXPECT_EQ(pool.take().line, 2);
  add(3, "a");
  EXPECT_EQ(pool.take().line, 1);  // not the smaller one that came later
  EXPECT_EQ(pool.take().line, 3);
}

TEST(FingerprintSet, KnowsWhatItHasHad) {
  FingerprintSet set;
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 50000; ++i)
      ASSERT_EQ(set.insert("id-" + std::to_string(i)), round == 0) << i;
  EXPECT_EQ(set.size(), 50000u);
  EXPECT_TRUE(set.insert(""));
  EXPECT_FALSE(set.insert(""));
}

}  // namespace
}  // namespace peregrine::test
