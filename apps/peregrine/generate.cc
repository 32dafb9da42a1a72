// peregrine generate: one answer to one prompt, streamed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "answer.h"
#include "base/fail.h"
#include "chat_request.h"
#include "commands.h"
#include "engine/model_impl.h"
#include "input.h"
#include "interrupt.h"
#include "model_options.h"
#include "output.h"
#include "prefill.h"
#include "rank_options.h"
#include "report.h"
#include "sampling_options.h"
#include "text/prompt.h"

namespace peregrine {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  peregrine generate --chat \"Tell me a story about a brave fox named Ruby.\"\n"
    "  peregrine generate --chat --thinking --temperature 0 \"What is 468 + 357?\"\n"
    "  peregrine generate --file notes.txt --max-tokens 100 --seed 7 --json\n"
    "  echo \"Once upon a time\" | peregrine generate --draft off\n"
    "  mpirun -n 2 peregrine generate --chat \"Tell me a story.\"\n"
    "Ctrl-C ends the answer; the exit code is then 130.";

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  DraftFlags draft;
  RankFlags ranks;
  std::optional<std::string> prompt;
  std::string file, system, tools;
  std::string thinking = "off";
  bool chat = false, raw = false, json = false;
  std::optional<int> logprobs;
};

struct Prompt {
  std::vector<int32_t> ids;
  OutputStart start = OutputStart::kContent;
  bool parse_tools = false;
};

void check(const Options& o) {
  if (o.prompt && !o.file.empty())
    fail(ErrorKind::kInvalidArgument, "a prompt and --file {}: expected one of them", o.file);
  if (o.raw && o.chat)
    fail(ErrorKind::kInvalidArgument, "--raw and --chat: expected at most one of them");
  if (!o.chat && (!o.system.empty() || !o.tools.empty() || o.thinking != "off"))
    fail(ErrorKind::kInvalidArgument, "--system, --tools and --thinking need --chat");
  if (o.logprobs && !o.json)
    fail(ErrorKind::kInvalidArgument, "--logprobs {}: needs --json, which prints them",
         *o.logprobs);
}

Prompt make_prompt(const Options& o, const Model& model) {
  const Tokenizer& tokenizer = model.impl().tokenizer;
  const std::string text = o.prompt ? *o.prompt : read_input(o.file, !o.raw);
  if (text.empty())
    fail(ErrorKind::kInvalidArgument, "empty prompt: expected at least one character");
  Prompt prompt;
  if (o.raw) {
    prompt.ids = tokenizer.encode(text, SpecialTokens::kRecognise);
  } else if (!o.chat) {
    prompt.ids = encode_completion(text, tokenizer);
  } else {
    ChatRequest request;
    set_thinking(o.thinking, request);
    if (!o.system.empty()) request.messages.push_back(text_message(Role::kSystem, o.system));
    request.messages.push_back(text_message(Role::kUser, text));
    if (!o.tools.empty()) attach_to_system(request.messages, read_tools(o.tools), std::nullopt);
    const RenderedPrompt rendered = render_prompt(request);
    prompt.ids = encode_prompt(rendered, tokenizer);
    prompt.start = rendered.start;
    prompt.parse_tools = request.parse_tools();
  }
  return prompt;
}

// A rank beside the one that answers: its part of the model is needed until that one ends.
void serve_others(const Options& o, Ranks& ranks) {
  const std::shared_ptr<const Model> model = ranks.load(o.model);
  ranks.wait_for_all();
  ranks.serve_others(*model);
}

void run(const Options& o) {
  check(o);
  Ranks ranks(o.ranks, /*most_dp=*/1);
  if (ranks.rank() > 0) return serve_others(o, ranks);
  const std::shared_ptr<const Model> model = ranks.load(o.model);
  const Tokenizer& tokenizer = model->impl().tokenizer;
  const DraftOptions draft = draft_options(o.draft, *model);
  const Prompt prompt = make_prompt(o, *model);
  check_room(prompt.ids.size(), o.model, *model);

  AnswerRequest request{.parse = o.chat, .start = prompt.start, .parse_tools = prompt.parse_tools};
  request.generate = {.sampling = o.sampling.params(),
                      .max_tokens = o.sampling.max_tokens,
                      .stop_ids = tokenizer.end_of_turn_ids(),
                      .masked_ids = tokenizer.masked_ids(model->vocab_size()),
                      .draft = draft};
  request.generate.sampling.logprobs = o.logprobs;
  validate(request.generate.sampling, model->vocab_size());
  if (o.sampling.max_tokens < 1)
    fail(ErrorKind::kInvalidArgument, "--max-tokens {}: expected at least 1",
         o.sampling.max_tokens);

  RunReport report;
  AnswerPrinter printer;
  const InterruptGuard guard(/*once=*/true);
  ranks.wait_for_all();
  {
    const StepsEnd end(ranks.exchange(), ranks.tensors());
    Session session(model, session_options(o.model, draft.drafts));
    if (!prefill(session, prompt.ids, report)) throw Interrupted();
    report.answer = make_answer(session, request, [&](const OutputEvent& event) {
      if (!o.json) printer.print(event);
    });
  }
  // After the session's memory is free again: the measurement needs a buffer of its own.
  report.read_bandwidth = read_bandwidth(o.model.threads, model->weight_bytes());
  if (o.json) {
    write_output(report_json(report, tokenizer).dump(2) + "\n");
  } else {
    printer.finish();
  }
  fmt::print(stderr, "{}\n", closing_line(report));
  if (report.answer.interrupted) throw Interrupted();
}

}  // namespace

void add_generate(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Stream an answer to one prompt");
  command->footer(kExamples);
  command->add_option("prompt", o->prompt, "The prompt (default: standard input)");
  command->add_option("--file", o->file, "Read the prompt from this file; - is standard input");
  command->add_flag("--chat", o->chat, "The prompt is a user's message, not a text to continue");
  command->add_option("--system", o->system, "System message of the chat");
  command->add_option("--tools", o->tools,
                      "JSON file with the list of functions that the model may call in the chat");
  add_thinking_flag(*command, o->thinking);
  command->add_flag("--raw", o->raw,
                    "Take the prompt as it is, with the spellings of control tokens; nothing is "
                    "added");
  command->add_flag("--json", o->json, "Print one JSON object at the end instead of streaming");
  command->add_option("--logprobs", o->logprobs,
                      "With --json: log-probabilities of every token and of the N likeliest");
  add_sampling_options(*command, o->sampling);
  add_draft_options(*command, o->draft);
  add_rank_options(*command, o->ranks);
  add_model_options(*command, o->model);
  command->callback([o] { run(*o); });
}

}  // namespace peregrine
