// peregrine serve as a process: killed under load and started again at the same address, and the
// benchmark that loads it.
#include <nlohmann/json.hpp>
#include <regex>

#include "program.h"
#include "server/http_client.h"

namespace peregrine::test {
namespace {

using Json = nlohmann::json;

// The program in the background, until it is killed or told to end.
class ServeProcess {
 public:
  explicit ServeProcess(int port) {
    int out[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    const std::string number = std::to_string(port);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], 1);
      dup2(open("/dev/null", O_WRONLY), 2);
      execl(PEREGRINE_PROGRAM, PEREGRINE_PROGRAM, "serve", "--model", kTiny.c_str(), "--port",
            number.c_str(), "--threads", "1", "--max-running", "4", "--kv-bytes", "67108864",
            "--context", "16384", static_cast<char*>(nullptr));
      _exit(127);
    }
    close(out[1]);
    std::string text;
    char piece[256];
    for (ssize_t n; text.find('\n') == text.npos && (n = read(out[0], piece, sizeof piece)) > 0;)
      text.append(piece, static_cast<size_t>(n));
    out_ = out[0];
    std::smatch match;
    if (std::regex_search(text, match, std::regex("http://127.0.0.1:([0-9]+)\n")))
      port_ = std::stoi(match[1]);
  }
  ~ServeProcess() {
    if (pid_ > 0) end(SIGKILL);
    close(out_);
  }
  int port() const { return port_; }  // 0: it has not begun to serve
  // The exit status as of waitpid().
  int end(int signal) {
    kill(pid_, signal);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
  int out_ = -1, port_ = 0;
};

const std::string kEndless =
    R"({"prompt":"Once upon a time","max_tokens":100000,"ignore_eos":true,"stream":true})";

TEST(Serve, KilledUnderLoadStartsAgainAtTheSameAddress) {
  int port = 0;
  for (int round = 0; round < 2; ++round) {
    ServeProcess server(port);
    ASSERT_GT(server.port(), 0);
    if (round > 0) {
      EXPECT_EQ(server.port(), port);
    }
    port = server.port();
    // One that runs, then more than may run beside it.
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<Client>(port));
      clients.back()->send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
                           std::to_string(kEndless.size()) + "\r\n\r\n" + kEndless);
      if (i == 0) {
        ASSERT_TRUE(clients.front()->read_until("data: "));
      }
    }
    EXPECT_TRUE(WIFSIGNALED(server.end(SIGKILL)));
    for (const auto& client : clients) EXPECT_FALSE(client->receive().ended_cleanly);
  }
  ServeProcess server(port);
  ASSERT_EQ(server.port(), port);
  EXPECT_EQ(Client(port).get("/readyz").status, 200);
  const int status = server.end(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Serve, BenchServeChecksEveryStream) {
  ServeProcess server(0);
  ASSERT_GT(server.port(), 0);
  const std::string url = "http://127.0.0.1:" + std::to_string(server.port());
  const ProgramResult result = run_program({"bench", "serve", "--url", url, "--clients", "6",
                                            "--seconds", "1", "--max-tokens", "8", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json report = Json::parse(result.out)["serve"];
  EXPECT_EQ(report["errors"], 0);
  EXPECT_GE(report["answers"], 6);
  EXPECT_GT(report["samples"].back()["resident_bytes"], 0);
  EXPECT_GT(report["loop_delay_ms_p99"], 0);
  server.end(SIGKILL);
  expect_refused(run_program({"bench", "serve", "--url", url, "--seconds", "1"}), url);
  expect_refused(run_program({"bench", "serve", "--url", "https://x/y"}), "https://x/y");
}

TEST(Serve, BenchOverheadComparesEqualAnswers) {
  const ProgramResult result =
      run_program({"bench", "overhead", "--model", kTiny, "--threads", "1", "--repetitions", "1",
                   "--max-concurrency", "2", "--draft", "2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json rows = Json::parse(result.out)["overhead"];
  ASSERT_EQ(rows.size(), 2u);
  for (const Json& row : rows) EXPECT_GT(row["ratio"], 0);
}

}  // namespace
}  // namespace peregrine::test
