// peregrine chat: a conversation at the terminal, or of lines from a pipe.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "answer.h"
#include "base/fail.h"
#include "chat_request.h"
#include "commands.h"
#include "conversation.h"
#include "engine/model_impl.h"
#include "interrupt.h"
#include "line_reader.h"
#include "model_options.h"
#include "output.h"
#include "prefill.h"
#include "report.h"
#include "sampling_options.h"

namespace peregrine {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  peregrine chat\n"
    "  peregrine chat --system \"You answer briefly and clearly.\" --thinking=50\n"
    "  printf 'Thanks\\n/stats\\n/quit\\n' | peregrine chat --temperature 0\n"
    "Ctrl-C stops the answer, Ctrl-D or /quit ends; /help lists the commands.";

constexpr const char* kHelp =
    "/clear             forget the conversation\n"
    "/system [TEXT]     set the system message, or take it away\n"
    "/thinking on|off|N reason first, with an effort of 1 to 100\n"
    "/temperature X     0 to 2\n"
    "/seed N            same seed, same answers\n"
    "/draft off|auto|N  speculative decoding\n"
    "/save FILE         write the conversation\n"
    "/load FILE         continue one\n"
    "/stats             speed of the last answer\n"
    "/quit              end (also Ctrl-D)\n";

// What a chat keeps when messages are taken back: earlier reasoning is left out of the next prompt.
constexpr int kRollbackTokens = 1024;

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  DraftFlags draft;
  std::string system;
  std::string thinking = "off";
};

template <typename Value>
Value number(const std::string& command, const std::string& text) {
  Value value{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || text.empty())
    fail(ErrorKind::kInvalidArgument, "{} '{}': expected a number", command, text);
  return value;
}

class Chat {
 public:
  explicit Chat(const Options& options)
      : options_(options),
        model_(load_model(options.model)),
        tokenizer_(model_->impl().tokenizer),
        draft_(draft_options(options.draft, *model_)),
        session_(model_, make_session_options()),
        reader_(default_history_path()) {
    conversation_.system = options.system;
    set_thinking_checked(options.thinking);
    validate(options_.sampling.params(), model_->vocab_size());
    if (options_.sampling.max_tokens < 1)
      fail(ErrorKind::kInvalidArgument, "--max-tokens {}: expected at least 1",
           options_.sampling.max_tokens);
  }

  void run() {
    const InterruptGuard guard(/*once=*/false);
    if (reader_.interactive()) write_output("/help lists the commands.\n");
    while (!done_) {
      std::string line;
      const LineStatus status = reader_.read("> ", line);
      if (status == LineStatus::kInterrupted) {
        if (!reader_.interactive()) throw Interrupted();
        write_output("\n");
        continue;
      }
      if (status == LineStatus::kEnd) {
        if (reader_.interactive()) write_output("\n");
        return;
      }
      try {
        handle(line);
      } catch (const Error& error) {
        // A mistake in a line costs that line only; output that cannot be written ends the chat.
        if (error.kind() == ErrorKind::kIo && !in_command_) throw;
        fmt::print(stderr, "peregrine: {}\n", error.what());
      }
    }
  }

 private:
  SessionOptions make_session_options() const {
    SessionOptions s = session_options(options_.model, model_->has_drafter() ? kMaxDrafts : 0);
    s.rollback_tokens = kRollbackTokens;
    return s;
  }

  void set_thinking_checked(const std::string& value) {
    ChatRequest ignored;
    set_thinking(value, ignored);
    conversation_.thinking = value;
  }

  void handle(const std::string& line) {
    if (line.find_first_not_of(" \t\r") == line.npos) return;
    in_command_ = line[0] == '/';
    if (!in_command_) return answer(line);
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const size_t begin = line.find_first_not_of(' ', space);
    command(name, space == line.npos || begin == line.npos ? "" : line.substr(begin));
  }

  void command(const std::string& name, const std::string& argument) {
    if (name == "/help") {
      write_output(kHelp);
    } else if (name == "/clear") {
      conversation_.clear();
    } else if (name == "/system") {
      conversation_.system = argument;
    } else if (name == "/thinking") {
      set_thinking_checked(argument);
    } else if (name == "/temperature") {
      SamplingOptions changed = options_.sampling;
      changed.temperature = number<double>(name, argument);
      validate(changed.params(), model_->vocab_size());
      options_.sampling = changed;
    } else if (name == "/seed") {
      options_.sampling.seed = number<uint64_t>(name, argument);
    } else if (name == "/draft") {
      DraftFlags flags = options_.draft;
      flags.length = argument;
      draft_ = draft_options(flags, *model_);
    } else if (name == "/save" || name == "/load") {
      if (argument.empty())
        fail(ErrorKind::kInvalidArgument, "{}: expected the name of a file", name);
      if (name == "/save") {
        conversation_.save(argument);
      } else {
        conversation_.load(argument, tokenizer_);
      }
    } else if (name == "/stats") {
      stats();
    } else if (name == "/quit") {
      done_ = true;
    } else {
      fail(ErrorKind::kInvalidArgument, "{}: no such command, /help lists them", name);
    }
  }

  void stats() {
    if (!last_) {
      write_output("no answer yet\n");
      return;
    }
    if (bandwidth_ == 0)
      bandwidth_ = read_bandwidth(options_.model.threads, model_->weight_bytes());
    last_->read_bandwidth = bandwidth_;
    write_output(fmt::format("{}\n{} turns, {} tokens in the session\n", closing_line(*last_),
                             conversation_.turns(), session_.length()));
  }

  void answer(const std::string& line) {
    const Conversation::Prompt prompt = conversation_.prompt(line, tokenizer_);
    check_room(prompt.ids.size(), options_.model, *model_);
    InterruptGuard::clear();
    RunReport report;
    if (!prefill(session_, prompt.ids, report)) {
      write_output("\n");
      return;  // the message is taken back
    }
    AnswerRequest request{.parse = true, .start = prompt.start};
    request.generate = {.sampling = options_.sampling.params(),
                        .max_tokens = options_.sampling.max_tokens,
                        .stop_ids = tokenizer_.end_of_turn_ids(),
                        .masked_ids = tokenizer_.masked_ids(model_->vocab_size()),
                        .draft = draft_};
    AnswerPrinter printer;
    report.answer =
        make_answer(session_, request, [&](const OutputEvent& event) { printer.print(event); });
    printer.finish();
    conversation_.add(line, prompt.start, report.answer, tokenizer_);
    last_ = std::move(report);
  }

  Options options_;
  std::shared_ptr<const Model> model_;
  const Tokenizer& tokenizer_;
  DraftOptions draft_;
  Session session_;
  LineReader reader_;
  Conversation conversation_;
  std::optional<RunReport> last_;
  double bandwidth_ = 0;
  bool in_command_ = false;
  bool done_ = false;
};

}  // namespace

void add_chat(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("chat", "Talk with a model");
  command->footer(kExamples);
  command->add_option("--system", o->system, "System message");
  add_thinking_flag(*command, o->thinking);
  add_sampling_options(*command, o->sampling);
  add_draft_options(*command, o->draft);
  add_model_options(*command, o->model);
  command->callback([o] { Chat(*o).run(); });
}

}  // namespace peregrine
