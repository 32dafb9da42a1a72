// bench speculation: what drafts bring, by domain of the prompt, in one interleaved run.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "answer.h"
#include "base/fail.h"
#include "bench.h"
#include "bench_prompts.h"
#include "engine/model_impl.h"
#include "interrupt.h"
#include "output.h"
#include "prefill.h"

namespace peregrine {
namespace {

using Json = nlohmann::ordered_json;

enum Way { kPlain, kFixed, kAuto, kWays };

struct Sum {
  int64_t tokens = 0;
  double seconds = 0;
  double rate() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

struct Domain {
  std::array<Sum, kWays> speed;
  GenerateStats fixed;  // of the runs with a fixed block
};

void accumulate(GenerateStats& sum, const GenerateStats& one) {
  sum.steps += one.steps;
  sum.tokens += one.tokens;
  sum.drafted += one.drafted;
  sum.verified += one.verified;
  sum.accepted += one.accepted;
  for (size_t i = 0; i < sum.verified_at.size(); ++i) {
    sum.verified_at[i] += one.verified_at[i];
    sum.accepted_at[i] += one.accepted_at[i];
  }
}

// By position: the share of verified drafts that stood there or further on.
std::vector<double> acceptance(const GenerateStats& s) {
  std::vector<double> shares;
  for (size_t i = 0; i < s.verified_at.size() && s.verified_at[i] > 0; ++i)
    shares.push_back(static_cast<double>(s.accepted_at[i]) / static_cast<double>(s.verified_at[i]));
  return shares;
}

Json report(const std::string& domain, double temperature, const Domain& d, bool print) {
  const std::vector<double> shares = acceptance(d.fixed);
  const double plain = d.speed[kPlain].rate(), fixed = d.speed[kFixed].rate(),
               automatic = d.speed[kAuto].rate();
  const auto speed_up = [&](double rate) { return plain > 0 ? rate / plain : 0; };
  if (print)
    write_output(
        fmt::format("{:<12} {:>4} {:>7.2f} {:>9.1f} {:>9.1f} {:>6.2f} {:>9.1f} {:>6.2f}  "
                    "{:.2f}\n",
                    domain, temperature, d.fixed.acceptance_length(), plain, fixed, speed_up(fixed),
                    automatic, speed_up(automatic), fmt::join(shares, " ")));
  return {{"domain", domain},
          {"temperature", temperature},
          {"acceptance_length", d.fixed.acceptance_length()},
          {"acceptance_by_position", shares},
          {"steps", d.fixed.steps},
          {"verified", d.fixed.verified},
          {"accepted", d.fixed.accepted},
          {"plain_tokens_per_second", plain},
          {"fixed_tokens_per_second", fixed},
          {"fixed_speed_up", speed_up(fixed)},
          {"auto_tokens_per_second", automatic},
          {"auto_speed_up", speed_up(automatic)}};
}

}  // namespace

Json bench_speculation(const BenchOptions& o) {
  const auto model = load_model(o.model);
  if (!model->has_drafter())
    fail(ErrorKind::kInvalidArgument, "{}: has no drafter to measure", o.model.model);
  const Tokenizer& tokenizer = model->impl().tokenizer;
  const std::vector<BenchPrompt> prompts = read_bench_prompts(o.prompts, tokenizer);
  DraftFlags flags = o.draft;
  if (flags.length == "off" || flags.length == "auto") flags.length.clear();
  std::array<DraftOptions, kWays> drafts;
  drafts[kFixed] = draft_options(flags, *model);
  drafts[kAuto] = drafts[kFixed];
  drafts[kAuto].mode = DraftMode::kAuto;

  Session session(model, session_options(o.model, drafts[kFixed].drafts));
  std::map<std::pair<double, std::string>, Domain> domains;
  const auto run = [&](const BenchPrompt& prompt, double temperature, int way, uint64_t seed,
                       bool counted) {
    check_room(prompt.ids.size(), o.model, *model);
    session.sync(prompt.ids);
    AnswerRequest request;
    request.generate = {.max_tokens = o.max_tokens,
                        .stop_ids = tokenizer.end_of_turn_ids(),
                        .masked_ids = tokenizer.masked_ids(model->vocab_size()),
                        .draft = drafts[static_cast<size_t>(way)]};
    request.generate.sampling.temperature = temperature;
    request.generate.sampling.seed = seed;
    const Answer answer = make_answer(session, request, [](const OutputEvent&) {});
    if (!counted) return;
    for (const std::string& name : {prompt.domain, std::string("all")}) {
      Domain& domain = domains[{temperature, name}];
      Sum& sum = domain.speed[static_cast<size_t>(way)];
      sum.tokens += answer.stats.tokens - 1;
      sum.seconds += answer.seconds;
      if (way == kFixed) accumulate(domain.fixed, answer.stats);
    }
  };

  const int rounds = std::max(1, o.repetitions / 5);
  for (int way = 0; way < kWays; ++way) run(prompts[0], 0, way, 0, false);
  int turn = 0;  // who goes first changes, so that no way has the warm caches every time
  // Domain by domain, so that what `auto` learns of one is charged to that one.
  std::vector<std::string> order;
  for (const BenchPrompt& prompt : prompts)
    if (std::find(order.begin(), order.end(), prompt.domain) == order.end())
      order.push_back(prompt.domain);
  for (const std::string& domain : order)
    for (int round = 0; round < rounds; ++round)
      for (const BenchPrompt& prompt : prompts) {
        if (prompt.domain != domain) continue;
        for (const double temperature : {0.0, 1.0}) {
          for (int i = 0; i < kWays; ++i)
            run(prompt, temperature, (turn + i) % kWays, static_cast<uint64_t>(round), true);
          ++turn;
        }
      }

  if (!o.json)
    write_output(fmt::format(
        "{} prompts, {} rounds, blocks of {}, verification {}\n"
        "{:<12} {:>4} {:>7} {:>9} {:>9} {:>6} {:>9} {:>6}  {}\n",
        prompts.size(), rounds, drafts[kFixed].drafts, o.draft.verify, "domain", "T", "length",
        "plain/s", "fixed/s", "ratio", "auto/s", "ratio", "accepted by position"));
  Json rows = Json::array();
  for (const auto& [key, domain] : domains)
    rows.push_back(report(key.second, key.first, domain, !o.json));
  return {{"device", model->device_name()},
          {"prompts", prompts.size()},
          {"rounds", rounds},
          {"block", drafts[kFixed].drafts},
          {"domains", rows}};
}

}  // namespace peregrine
