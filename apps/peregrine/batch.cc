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
#include "sampling_options.h"
#include "server/generation_fields.h"

namespace peregrine {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  peregrine batch requests.jsonl results.jsonl\n"
    "  peregrine batch requests.jsonl results.jsonl --order completed --schedule longest\n"
    "  peregrine batch - - < requests.jsonl > results.jsonl\n"
    "A request is a line {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": "
    "\"/v1/chat/completions\", \"body\": {...}}.\n"
    "The same command after a stop, a crash or a kill goes on where the results end.\n"
    "Ctrl-C ends the run when running requests have ended; a second one at once.\n"
    "Exit codes: 0 every request was answered; 3 some lines failed, their results say why;\n"
    "1 the run could not go on; 130 stopped by Ctrl-C.";

struct BatchFlags {
  ModelOptions model;
  DraftFlags draft;
  EngineFlags engine;
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

void run(const BatchFlags& flags) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("batch"));
  spdlog::set_level(spdlog::level::warn);  // no line a request
  // Both files first: a long load is no time to find out.
  BatchInput input(flags.input);
  BatchJournal journal(flags.output, flags.input, flags.overwrite);
  const int64_t lines = input.count_lines();

  const auto model = load_model(flags.model);
  EngineOptions engine_opts = engine_options(flags.engine, flags.model);
  // The runner starts no more than it can hold; a request may ask for many choices.
  engine_opts.max_waiting = 2 * engine_opts.max_running * kMaxChoices;
  Engine engine(model, engine_opts);
  const auto folder = std::filesystem::weakly_canonical(flags.model.model);
  Service service(engine, {.model_name = folder.filename().string()},
                  draft_options(flags.draft, *model));
  BatchRunner runner(service, input, journal, batch_options(flags));

  const InterruptGuard guard(/*once=*/false);
  BatchReport report(lines, journal.resumed());
  int interrupts = 0;
  const BatchProgress end = runner.run([&](const BatchProgress& progress) {
    report.show(progress, engine);
    return ask_interrupt(interrupts);
  });
  report.finish(end, engine);
  if (!end.complete) throw Interrupted();
  if (end.failed + journal.resumed_failures() > 0) throw ExitCode{kSomeLinesFailed};
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
  add_model_options(*command, o->model);
  command->callback([o] { run(*o); });
}

}  // namespace peregrine
