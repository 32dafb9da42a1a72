// Runs the built program as a user would, and keeps what it wrote.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace peregrine::test {

struct ProgramResult {
  int code = -1;   // exit code; -1 when a signal ended it
  int signal = 0;  // that signal
  std::string out, err;
  int64_t peak_bytes = 0;  // of resident memory

  size_t error_lines() const {
    return static_cast<size_t>(std::count(err.begin(), err.end(), '\n'));
  }
};

enum class Stdout { kPipe, kFull, kClosed, kClosedPipe };

struct ProgramRun {
  std::vector<std::string> arguments;
  std::string input = {};
  Stdout output = Stdout::kPipe;
  // SIGINT is sent once when this has appeared on standard output.
  std::string signal_after = {};
};

inline ProgramResult run_program(const ProgramRun& what) {
  signal(SIGPIPE, SIG_IGN);
  int in[2], out[2], err[2];
  EXPECT_EQ(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC) | pipe2(err, O_CLOEXEC), 0);
  std::vector<char*> argv{const_cast<char*>(PEREGRINE_PROGRAM)};
  for (const std::string& argument : what.arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  const pid_t child = fork();
  if (child == 0) {
    dup2(in[0], 0);
    dup2(err[1], 2);
    if (what.output == Stdout::kFull) {
      dup2(open("/dev/full", O_WRONLY), 1);
    } else if (what.output == Stdout::kClosed) {
      close(1);
    } else {
      dup2(out[1], 1);
    }
    signal(SIGPIPE, SIG_DFL);
    execv(PEREGRINE_PROGRAM, argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  close(err[1]);
  if (what.output == Stdout::kClosedPipe) close(out[0]);

  ProgramResult result;
  size_t sent = 0;
  bool signalled = what.signal_after.empty();
  fcntl(in[1], F_SETFL, O_NONBLOCK);
  pollfd fds[3] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}, {in[1], POLLOUT, 0}};
  if (what.output == Stdout::kClosedPipe) fds[0].fd = -1;
  const auto finish_input = [&] {
    if (fds[2].fd >= 0) close(fds[2].fd);
    fds[2].fd = -1;
  };
  if (what.input.empty()) finish_input();
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    poll(fds, 3, -1);
    std::string* const texts[] = {&result.out, &result.err};
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      char piece[4096];
      const ssize_t got = read(fds[i].fd, piece, sizeof(piece));
      if (got > 0) {
        texts[i]->append(piece, static_cast<size_t>(got));
      } else {
        close(fds[i].fd);
        fds[i].fd = -1;
      }
    }
    if (fds[2].fd >= 0 && fds[2].revents != 0) {
      const ssize_t wrote = write(fds[2].fd, what.input.data() + sent, what.input.size() - sent);
      if (wrote > 0) sent += static_cast<size_t>(wrote);
      if (wrote < 0 || sent == what.input.size()) finish_input();
    }
    if (!signalled && result.out.find(what.signal_after) != std::string::npos) {
      signalled = true;
      kill(child, SIGINT);
    }
  }
  finish_input();
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  result.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
  return result;
}

inline ProgramResult run_program(std::vector<std::string> arguments, std::string input = {}) {
  return run_program(ProgramRun{.arguments = std::move(arguments), .input = std::move(input)});
}

// Exit code 1 and one line on standard error that holds `words`.
inline void expect_refused(const ProgramResult& result, const std::string& words) {
  EXPECT_EQ(result.code, 1) << "signal " << result.signal << "\n" << result.err;
  EXPECT_EQ(result.error_lines(), 1u) << result.err;
  EXPECT_TRUE(result.err.starts_with("peregrine: ")) << result.err;
  EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
}

// A folder that is removed again.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "peregrine-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return (path_ / name).string();
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline const std::string kTiny = PEREGRINE_MODELS "/tiny";

}  // namespace peregrine::test
