// peregrine bench: how fast this machine is with a model, beside what its memory allows.
#include "bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "commands.h"
#include "engine/model_impl.h"
#include "output.h"

namespace peregrine {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  peregrine bench decode --synthetic\n"
    "  peregrine bench prefill --synthetic --layers 4 --experts 16 --json\n"
    "  peregrine bench --model models/tiny\n"
    "  peregrine bench speculation --prompts benchmarks/prompts_speculation.jsonl\n"
    "  peregrine bench scheduler\n"
    "  peregrine bench throughput --max-concurrency 256 --trace trace.json\n"
    "  peregrine bench serve --url http://127.0.0.1:8000 --clients 256 --seconds 300\n"
    "  peregrine bench overhead --repetitions 5\n"
    "  peregrine bench transfer\n"
    "  peregrine bench cluster-sim --help";

void check(const std::string& kind, const BenchOptions& o) {
  if (o.repetitions < 1)
    fail(ErrorKind::kInvalidArgument, "--repetitions {}: expected at least 1", o.repetitions);
  if (o.prefill_tokens < 1)
    fail(ErrorKind::kInvalidArgument, "--prefill-tokens {}: expected at least 1", o.prefill_tokens);
  if (o.context_tokens < 1)
    fail(ErrorKind::kInvalidArgument, "--context {}: expected at least 1", o.context_tokens);
  if (o.clients < 1)
    fail(ErrorKind::kInvalidArgument, "--clients {}: expected at least 1", o.clients);
  if (!(o.seconds > 0))
    fail(ErrorKind::kInvalidArgument, "--seconds {}: expected more than 0", o.seconds);
  if (kind == "speculation" && o.synthetic)
    fail(ErrorKind::kInvalidArgument,
         "speculation with --synthetic: random weights accept no drafts, expected a checkpoint");
  if (kind == "speculation" && o.prompts.empty())
    fail(ErrorKind::kInvalidArgument, "speculation: expected --prompts with a file of prompts");
}

void run(const std::string& kind, const BenchOptions& o) {
  check(kind, o);
  nlohmann::ordered_json result = {{"load", machine_load()}};
  if (!o.json)
    write_output(
        fmt::format("load of the machine {:.1f} (figures of a shared machine mean little, "
                    "their ratios more)\n",
                    machine_load()));
  if (kind == "decode" || kind == "all") result["decode"] = bench_decode(o);
  if (kind == "prefill" || kind == "all") result["prefill"] = bench_prefill(o);
  if (kind == "scheduler") result["scheduler"] = bench_scheduler(o);
  if (kind == "throughput") result["throughput"] = bench_throughput(o);
  if (kind == "latency") result["latency"] = bench_latency(o);
  if (kind == "serve") result["serve"] = bench_serve(o);
  if (kind == "overhead") result["overhead"] = bench_overhead(o);
  if (kind == "transfer") result["transfer"] = bench_transfer(o);
  if (kind == "speculation") result["speculation"] = bench_speculation(o);
  if (o.json) write_output(result.dump(2) + "\n");
}

}  // namespace

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at =
      values.begin() + static_cast<ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::vector<int32_t> random_prompt(const Model& model, int length, std::mt19937_64& random) {
  const Tokenizer& tokenizer = model.impl().tokenizer;
  std::vector<int32_t> ids;
  while (static_cast<int>(ids.size()) < length) {
    const auto id = static_cast<int32_t>(random() % static_cast<uint64_t>(model.vocab_size()));
    if (tokenizer.has(id) && !tokenizer.is_added(id)) ids.push_back(id);
  }
  return ids;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double machine_load() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

void add_bench(CLI::App& app) {
  auto o = std::make_shared<BenchOptions>();
  auto kind = std::make_shared<std::string>("all");
  CLI::App* command =
      app.add_subcommand("bench", "Measure speed against the limits of the machine");
  command->footer(kExamples);
  command
      ->add_option("kind", *kind,
                   "decode, prefill, speculation, scheduler, throughput, latency, serve, "
                   "overhead or transfer (default: decode and prefill)")
      ->check(CLI::IsMember({"decode", "prefill", "speculation", "scheduler", "throughput",
                             "latency", "serve", "overhead", "transfer"}));
  add_device_options(*command, o->model);
  command->get_option("--model")->required(false);  // synthetic weights and devices need none
  command->add_flag("--synthetic", o->synthetic, "Random weights of the sizes below, in memory");
  command->add_option("--layers", o->shape.layers, "Layers (default: 2)");
  command->add_option("--experts", o->shape.experts, "Routed experts a layer (default: 32)");
  command->add_option("--dim", o->shape.dim, "Width of the stream (default: 5120)");
  command->add_option("--heads", o->shape.heads, "Attention heads of 512 (default: 64)");
  command->add_option("--expert-width", o->shape.expert_width,
                      "Width of an expert (default: 2304)");
  command->add_option("--vocab", o->shape.vocab, "Vocabulary (default: 129280)");
  command->add_option("--repetitions", o->repetitions, "Measurements a figure (default: 15)");
  command->add_option("--context", o->context_tokens,
                      "Tokens of every sequence before decode steps (default: 64)");
  command->add_option("--prefill-tokens", o->prefill_tokens, "Prompt length (default: 512)");
  command->add_option("--prompts", o->prompts,
                      "Prompts of bench speculation, one JSON object a line");
  command->add_option("--max-tokens", o->max_tokens,
                      "Answer length in bench speculation and serve (default: 96)");
  add_draft_options(*command, o->draft);
  command->add_option("--max-concurrency", o->max_concurrency,
                      "Most sequences at once in bench throughput and overhead (default: 64)");
  command->add_flag("--plain-loop", o->plain_loop,
                    "bench throughput: plan each step only when the one before is done");
  command->add_option("--trace", o->trace_file, "bench throughput: write a Chrome trace");
  command->add_option("--url", o->url, "bench serve: the server (default: http://127.0.0.1:8000)");
  command->add_option("--clients", o->clients, "bench serve: streams at once (default: 256)");
  command->add_option("--seconds", o->seconds, "bench serve: how long (default: 60)");
  command->add_flag("--json", o->json, "Print one JSON object");
  add_bench_cluster_sim(*command);
  command->callback([o, kind, command] {
    if (command->get_subcommands().empty()) run(*kind, *o);
  });
}

}  // namespace peregrine
