// peregrine inspect: what a model is made of and what it needs, from its config alone; a directory
// with tensor files is also checked against its config, without reading its weights.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/inventory.h"
#include "commands.h"
#include "parallel/distribution.h"

namespace peregrine {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Options {
  std::string path;
  int64_t context_tokens = 0;  // 0 = the longest the model allows
  std::string device = "cpu";
  int ranks = 1, tp = 1;
  bool json = false;
};

struct Files {
  size_t shards = 0;
  uint64_t bytes = 0;
};

// 1234567 -> "1,234,567"
std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

std::string human(int64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1000 && unit < 4; ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

// Opens the tensor files where there are any; one byte of budget keeps them mapped only.
std::optional<Files> check_files(const std::string& path) {
  std::error_code ignored;
  const fs::path directory(path);
  if (!fs::exists(directory / "model.safetensors.index.json", ignored) &&
      !fs::exists(directory / "model.safetensors", ignored)) {
    return std::nullopt;
  }
  CheckpointOptions options;
  options.memory_bytes = 1;
  const Checkpoint checkpoint = Checkpoint::open(path, options);
  return Files{checkpoint.source->files().size(), checkpoint.source->total_bytes()};
}

void print_shape(const ModelConfig& c) {
  fmt::print("layers              {} ({} encoder, {} decoder), {} draft stages\n", c.n_layers,
             c.first_decoder_layer(), c.n_layers - c.first_decoder_layer(), c.n_mtp_layers);
  fmt::print("width               {}, {} residual copies\n", c.dim, c.hc_mult);
  fmt::print("attention           {} heads of {}, window {}, top {} compressed rows\n", c.n_heads,
             c.head_dim, c.window_size, c.index_topk);
  fmt::print("experts             {} routed, {} active, 1 shared, {} wide\n", c.n_routed_experts,
             c.n_activated_experts, c.moe_inter_dim);
  fmt::print("vocabulary          {}\n", c.vocab_size);
  fmt::print("context             up to {} tokens\n", grouped(c.max_position));
  fmt::print("storage             {}\n\n",
             c.fp8_dense ? "FP8 dense weights, FP4 experts" : "unquantised weights");
}

void print_text(const Options& options, const ModelConfig& c, const Inventory& inventory,
                const MemoryPlan& plan, const std::optional<Files>& files) {
  print_shape(c);
  fmt::print("{:<20}{:>10}{:>20}{:>20}\n", "", "tensors", "parameters", "bytes");
  const auto row = [](std::string_view name, const KindTotal& total) {
    fmt::print("{:<20}{:>10}{:>20}{:>20}\n", name, grouped(total.tensors),
               grouped(total.parameters), grouped(total.bytes));
  };
  for (const KindTotal& total : inventory.kinds) row(kind_name(total.kind), total);
  row("all", {TensorKind::kVision, inventory.tensors, inventory.parameters, inventory.bytes});
  fmt::print("\n{:g} bytes of global KV a token\n", kv_bytes_per_token(c));
  fmt::print("{} bytes of window rings a sequence\n", grouped(ring_bytes(c)));
  fmt::print("{} bytes of weights read by one decoded token\n\n",
             grouped(decode_bytes_per_token(c)));
  fmt::print("memory for one sequence of {} tokens, device {}\n", grouped(plan.context_tokens),
             options.device);
  fmt::print("  weights           {:>10}\n", human(plan.weight_bytes));
  fmt::print("  Engram tables     {:>10}  (mapped on the host; rows are read when looked up)\n",
             human(plan.engram_table_bytes));
  fmt::print("  sequence state    {:>10}\n", human(plan.state_bytes));
  fmt::print("  host              {:>10}\n", human(plan.host_bytes));
  fmt::print("  device            {:>10}\n", human(plan.device_bytes));
  if (files) {
    fmt::print("\n{} file(s), {} bytes of tensors: they match the config\n", files->shards,
               grouped(static_cast<int64_t>(files->bytes)));
  }
}

Json ranks_json(const ModelConfig& c, int ranks) {
  Json list = Json::array();
  for (const RankShare& share : plan_ranks(c, ranks))
    list.push_back({{"first_expert", share.experts.begin},
                    {"experts", share.experts.end - share.experts.begin},
                    {"first_draft_expert", share.drafter_experts.begin},
                    {"draft_experts", share.drafter_experts.end - share.drafter_experts.begin},
                    {"expert_bytes", share.expert_bytes},
                    {"other_bytes", share.other_bytes}});
  return list;
}

Json tensor_ranks_json(const ModelConfig& c, int ranks) {
  Json list = Json::array();
  const auto range = [](const Slice& s) { return Json{{"first", s.begin}, {"count", s.size()}}; };
  for (const TensorShare& share : plan_tensor_ranks(c, ranks))
    list.push_back({{"heads", range(share.heads)},
                    {"output_groups", range(share.groups)},
                    {"vocabulary", range(share.vocabulary)},
                    {"engram_columns", range(share.engram_columns)},
                    {"experts", range(share.experts)},
                    {"draft_experts", range(share.drafter_experts)},
                    {"shared_bytes", share.shared_bytes},
                    {"other_bytes", share.other_bytes}});
  return list;
}

void print_json(const Options& options, const ModelConfig& c, const Inventory& inventory,
                const MemoryPlan& plan, const std::optional<Files>& files) {
  nlohmann::ordered_json kinds = nlohmann::ordered_json::object();
  for (const KindTotal& total : inventory.kinds) {
    kinds[std::string(kind_name(total.kind))] = {
        {"tensors", total.tensors}, {"parameters", total.parameters}, {"bytes", total.bytes}};
  }
  nlohmann::ordered_json result = {
      {"shape",
       {{"layers", c.n_layers},
        {"decoder_from_layer", c.first_decoder_layer()},
        {"draft_stages", c.n_mtp_layers},
        {"width", c.dim},
        {"heads", c.n_heads},
        {"head_dim", c.head_dim},
        {"routed_experts", c.n_routed_experts},
        {"active_experts", c.n_activated_experts},
        {"vocabulary", c.vocab_size},
        {"max_tokens", c.max_position}}},
      {"tensors", inventory.tensors},
      {"parameters", inventory.parameters},
      {"bytes", inventory.bytes},
      {"kinds", kinds},
      {"kv_bytes_per_token", kv_bytes_per_token(c)},
      {"ring_bytes_per_sequence", ring_bytes(c)},
      {"decode_weight_bytes_per_token", decode_bytes_per_token(c)},
      {"memory",
       {{"device", options.device},
        {"context_tokens", plan.context_tokens},
        {"weight_bytes", plan.weight_bytes},
        {"engram_table_bytes", plan.engram_table_bytes},
        {"state_bytes", plan.state_bytes},
        {"host_bytes", plan.host_bytes},
        {"device_bytes", plan.device_bytes}}},
  };
  if (options.tp > 1) {
    result["ranks"] = tensor_ranks_json(c, options.ranks);
  } else if (options.ranks > 1) {
    result["ranks"] = ranks_json(c, options.ranks);
  }
  if (files) result["files"] = {{"shards", files->shards}, {"bytes", files->bytes}};
  fmt::print("{}\n", result.dump(2));
}

std::string range(const Slice& s) {
  return s.size() == 0 ? "none" : fmt::format("{}..{}", s.begin, s.end - 1);
}

void print_ranks(const ModelConfig& c, int ranks) {
  fmt::print("\n{} ranks with expert parallelism: each holds its experts and everything else\n",
             ranks);
  fmt::print("{:<8}{:>14}{:>18}{:>18}{:>18}\n", "rank", "experts", "draft experts", "expert bytes",
             "all bytes");
  int rank = 0;
  for (const RankShare& share : plan_ranks(c, ranks)) {
    fmt::print("{:<8}{:>14}{:>18}{:>18}{:>18}\n", rank++, range(share.experts),
               range(share.drafter_experts), grouped(share.expert_bytes),
               grouped(share.expert_bytes + share.other_bytes));
  }
}

void print_tensor_ranks(const ModelConfig& c, int ranks) {
  fmt::print(
      "\n{} ranks with tensor parallelism: each holds its part of attention, experts, vocabulary\n"
      "and Engram tables, and whole indexers, compressors, routers and KV state\n",
      ranks);
  fmt::print("{:<6}{:>10}{:>10}{:>16}{:>10}{:>10}{:>18}{:>18}\n", "rank", "heads", "groups",
             "vocabulary", "Engram", "experts", "shared bytes", "all bytes");
  int rank = 0;
  for (const TensorShare& share : plan_tensor_ranks(c, ranks)) {
    fmt::print("{:<6}{:>10}{:>10}{:>16}{:>10}{:>10}{:>18}{:>18}\n", rank++, range(share.heads),
               range(share.groups), range(share.vocabulary), range(share.engram_columns),
               range(share.experts), grouped(share.shared_bytes),
               grouped(share.shared_bytes + share.other_bytes));
  }
}

void run(const Options& options) {
  if (options.tp != 1 && options.tp != options.ranks)
    fail(ErrorKind::kInvalidArgument, "--tp {} with --ranks {}: expected 1 or {}", options.tp,
         options.ranks, options.ranks);
  const ModelConfig config = ModelConfig::load(options.path);
  const std::optional<Files> files = check_files(options.path);
  const Inventory inventory = take_inventory(config);
  const int64_t context =
      options.context_tokens == 0 ? config.max_position : options.context_tokens;
  const MemoryPlan plan =
      plan_memory(config, context, options.device == "cuda" ? PlanDevice::kCuda : PlanDevice::kCpu);
  (options.json ? print_json : print_text)(options, config, inventory, plan, files);
  if (options.json) return;
  if (options.tp > 1) {
    print_tensor_ranks(config, options.ranks);
  } else if (options.ranks > 1) {
    print_ranks(config, options.ranks);
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show a model's shape, parameters, bytes by kind and memory needs");
  command->footer(
      "Examples:\n"
      "  peregrine inspect models/tiny\n"
      "  peregrine inspect config.json --context 131072 --json\n"
      "  peregrine inspect config.json --ranks 64\n"
      "  peregrine inspect config.json --ranks 8 --tp 8");
  command->add_option("path", options->path, "Checkpoint directory or config.json")->required();
  command->add_option("--context", options->context_tokens,
                      "Context length to plan memory for, in tokens (default: the longest)");
  command->add_option("--device", options->device, "Where the weights go: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command
      ->add_option("--ranks", options->ranks,
                   "Show what each of that many ranks would hold (default: 1)")
      ->check(CLI::Range(1, 4096));
  command
      ->add_option(
          "--tp", options->tp,
          "With --ranks N: N for tensor parallelism, 1 for expert parallelism (default: 1)")
      ->check(CLI::Range(1, 4096));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { run(*options); });
}

}  // namespace peregrine
