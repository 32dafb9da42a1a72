// peregrine batch: a file of requests to a file of results.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "base/fail.h"
#include "batch_progress.h"
#include "commands.h"
#include "engine_flags.h"
#include "interrupt.h"
#include "rank_options.h"
#include "sampling_options.h"
#include "server/batch_parts.h"
#include "server/generation_fields.h"

namespace peregrine {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  peregrine batch requests.jsonl results.jsonl\n"
    "  peregrine batch requests.jsonl results.jsonl --order completed --schedule longest\n"
    "  peregrine batch - - < requests.jsonl > results.jsonl\n"
    "  mpirun -n 2 peregrine batch requests.jsonl results.jsonl\n"
    "A request is a line {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": "
    "\"/v1/chat/completions\", \"body\": {...}}.\n"
    "The same command after a stop, a crash or a kill goes on where the results end.\n"
    "Ctrl-C ends the run when running requests have ended; a second one at once.\n"
    "Exit codes: 0 every request was answered; 3 some lines failed, their results say why;\n"
    "1 the run could not go on; 130 stopped by Ctrl-C.";

constexpr double kFilesPatienceSeconds = 60;
constexpr double kSharePatienceSeconds = 7 * 24 * 3600;

struct BatchFlags {
  ModelOptions model;
  DraftFlags draft;
  EngineFlags engine;
  RankFlags ranks;
  BatchOptions batch;
  std::string input, output;
  std::string order = "input", schedule = "arrival";
  bool overwrite = false;
};

BatchOptions batch_options(const BatchFlags& flags) {
  BatchOptions options = flags.batch;
  options.input_order = flags.order == "input";
  options.schedule = flags.schedule == "longest"  ? BatchSchedule::kLongest
                     : flags.schedule == "prefix" ? BatchSchedule::kPrefix
                                                  : BatchSchedule::kArrival;
  return options;
}

// The first Ctrl-C drains, the second cancels.
BatchCommand ask_interrupt(int& interrupts) {
  if (InterruptGuard::requested()) {
    InterruptGuard::clear();
    ++interrupts;
  }
  return interrupts == 0   ? BatchCommand::kRun
         : interrupts == 1 ? BatchCommand::kDrain
                           : BatchCommand::kCancel;
}

// How a run ended, or one rank's share of it.
struct BatchEnd {
  bool complete = false;
  bool failed_lines = false;
};

// This rank's share of the lines, into `output`.
BatchEnd run_share(const BatchFlags& flags, Ranks& ranks, const std::string& output) {
  // Both files first: a long load is no time to find out.
  BatchInput input(flags.input);
  BatchJournal journal(output, flags.input, flags.overwrite && !ranks.several());
  const int64_t lines = input.count_lines() / ranks.dp();

  const auto model = ranks.load(flags.model);
  EngineOptions engine_opts = engine_options(flags.engine, flags.model);
  // The runner starts no more than it can hold; a request may ask for many choices.
  engine_opts.max_waiting = 2 * engine_opts.max_running * kMaxChoices;
  ranks.wait_for_all();
  const StepsEnd end_of_steps(nullptr, ranks.tensors());
  Engine engine(model, engine_opts, ranks.step_group());
  const auto folder = std::filesystem::weakly_canonical(flags.model.model);
  Service service(engine, {.model_name = folder.filename().string()},
                  draft_options(flags.draft, *model));
  BatchOptions options = batch_options(flags);
  options.shares = ranks.dp();
  options.share_rank = ranks.rank();
  BatchRunner runner(service, input, journal, options);

  const InterruptGuard guard(/*once=*/false);
  BatchReport report(lines, journal.resumed());
  int interrupts = 0;
  const BatchProgress end = runner.run([&](const BatchProgress& progress) {
    if (ranks.rank() == 0) report.show(progress, engine);
    return ask_interrupt(interrupts);
  });
  if (ranks.rank() == 0) {
    report.finish(end, engine);
    const std::string balance =
        ranks.exchange() ? balance_line(ranks.exchange()->balance_stats()) : std::string();
    if (!balance.empty()) fmt::print(stderr, "{}\n", balance);
  }
  return {.complete = end.complete, .failed_lines = end.failed + journal.resumed_failures() > 0};
}

// A rank without lines of its own, whose part of the model the others need.
void serve_others(const BatchFlags& flags, Ranks& ranks) {
  const auto model = ranks.load(flags.model);
  const EngineOptions options = engine_options(flags.engine, flags.model);
  ranks.wait_for_all();
  if (ranks.tensors()) return ranks.serve_others(*model);
  const Engine engine(model, options, ranks.step_group());
}

// All ranks' ends as one; rank 0 makes one output of the parts.
BatchEnd run_parts(const BatchFlags& flags, Ranks& ranks) {
  if (ranks.rank() == 0)
    prepare_batch_parts(flags.input, flags.output, ranks.dp(), flags.overwrite);
  ranks.control().barrier("files", kFilesPatienceSeconds);
  BatchEnd mine{.complete = true};
  if (ranks.takes_requests()) {
    mine = run_share(flags, ranks, batch_part(flags.output, ranks.rank()));
  } else {
    serve_others(flags, ranks);
  }
  // Shares end at different times where ranks do not step together.
  ranks.control().barrier("shares", kSharePatienceSeconds);
  const std::byte ends[] = {static_cast<std::byte>(mine.complete),
                            static_cast<std::byte>(mine.failed_lines)};
  for (const Bytes& theirs : ranks.control().all_gather({.tag = "ends"}, ends)) {
    mine.complete = mine.complete && theirs.at(0) != std::byte{0};
    mine.failed_lines = mine.failed_lines || theirs.at(1) != std::byte{0};
  }
  if (mine.complete && ranks.rank() == 0)
    merge_batch_parts(flags.output, ranks.dp(), flags.order == "input");
  return mine;
}

void run(const BatchFlags& flags) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("batch"));
  spdlog::set_level(spdlog::level::warn);  // no line a request
  BatchEnd end;
  {
    Ranks ranks(flags.ranks, /*most_dp=*/0);
    end = ranks.several() ? run_parts(flags, ranks) : run_share(flags, ranks, flags.output);
  }
  if (!end.complete) throw Interrupted();
  if (end.failed_lines) throw ExitCode{kSomeLinesFailed};
}

}  // namespace

void add_batch(CLI::App& app) {
  auto o = std::make_shared<BatchFlags>();
  o->engine.options.max_running = 32;
  CLI::App* command = app.add_subcommand("batch", "Answer a file of requests");
  command->footer(kExamples);
  command->add_option("input", o->input, "Requests, one JSON object a line; - is standard input")
      ->required();
  command->add_option("output", o->output, "Results, one a line; - is standard output")->required();
  command->add_option("--order", o->order, "Of the results: as the input, or as completed")
      ->check(CLI::IsMember({"input", "completed"}));
  command
      ->add_option("--schedule", o->schedule,
                   "Which of the requests read ahead starts next: arrival, longest (most work "
                   "first) or prefix (those that begin alike together)")
      ->check(CLI::IsMember({"arrival", "longest", "prefix"}));
  command->add_flag("--overwrite", o->overwrite, "Start anew: empty the output first");
  command
      ->add_option("--grace", o->batch.grace_seconds,
                   "Seconds that running requests get to end after Ctrl-C (default: 30)")
      ->check(CLI::NonNegativeNumber);
  add_draft_options(*command, o->draft);
  add_engine_options(*command, o->engine);
  add_rank_options(*command, o->ranks);
  add_model_options(*command, o->model);
  command->callback([o] { run(*o); });
}

}  // namespace peregrine
