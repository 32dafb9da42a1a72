// The kinds of peregrine bench, one file each, and what they share.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/synthetic.h"
#include "model_options.h"
#include "peregrine/engine.h"
#include "sampling_options.h"

namespace peregrine {

struct BenchOptions {
  ModelOptions model;
  bool synthetic = false;
  SyntheticShape shape;
  int repetitions = 15;
  int prefill_tokens = 512;
  int context_tokens = 64;  // of every sequence before decode steps
  bool json = false;
  // speculation
  std::string prompts;
  int max_tokens = 96;
  DraftFlags draft;
  // throughput
  int max_concurrency = 64;
  bool plain_loop = false;
  std::string trace_file;
  // serve
  std::string url = "http://127.0.0.1:8000";
  int clients = 256;
  double seconds = 60;
};

// Print, or return for --json.
nlohmann::ordered_json bench_decode(const BenchOptions& options);
nlohmann::ordered_json bench_prefill(const BenchOptions& options);
nlohmann::ordered_json bench_speculation(const BenchOptions& options);
nlohmann::ordered_json bench_scheduler(const BenchOptions& options);
nlohmann::ordered_json bench_throughput(const BenchOptions& options);
nlohmann::ordered_json bench_latency(const BenchOptions& options);
nlohmann::ordered_json bench_serve(const BenchOptions& options);
nlohmann::ordered_json bench_overhead(const BenchOptions& options);
nlohmann::ordered_json bench_transfer(const BenchOptions& options);

// What bench throughput runs: the engine, and all the requests given to it at once.
EngineOptions throughput_engine(const Model& model, int concurrency);
std::vector<Request> throughput_requests(const Model& model, const BenchOptions& options,
                                         int concurrency);
// Gives the engine all requests and waits for their ends. `on_event` is told which request an event
// belongs to, one event at a time. Returns the seconds it took.
double run_requests(Engine& engine, std::vector<Request> requests,
                    const std::function<void(size_t request, const Event& event)>& on_event);
// Registers bench cluster-sim, which has options of its own.
void add_bench_cluster_sim(CLI::App& bench);

// The value that `share` of the sorted values lie below; 0 for none.
double percentile(std::vector<double> values, double share);
// Text-like ids: ordinary tokens of the vocabulary, drawn from `random`.
std::vector<int32_t> random_prompt(const Model& model, int length, std::mt19937_64& random);
double median(std::vector<double> values);  // not empty

// Load of the machine over the last minute, in running threads; the share of it that is ours is
// not known.
double machine_load();

}  // namespace peregrine
