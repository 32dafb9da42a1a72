// bench overhead: what HTTP costs. The requests of bench throughput, alternately given to the
// engine and asked over HTTP from a server in this process; every answer must be the same text.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
// clang-format off: Boost 1.81 wants these first

#include <fmt/format.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "bench.h"
#include "engine/device.h"
#include "engine/model_impl.h"
#include "output.h"
#include "server/server.h"
#include "stream_client.h"
// clang-format on

namespace peregrine {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::ordered_json;

struct Round {
  double tokens_per_second = 0;
  std::vector<std::string> texts;
};

Round direct_round(const std::shared_ptr<const Model>& model, const BenchOptions& o,
                   int concurrency) {
  Engine engine(model, throughput_engine(*model, concurrency));
  std::vector<Request> requests = throughput_requests(*model, o, concurrency);
  std::vector<std::vector<int32_t>> outputs(requests.size());
  const double seconds =
      run_requests(engine, std::move(requests), [&](size_t i, const Event& event) {
        outputs[i].insert(outputs[i].end(), event.tokens.begin(), event.tokens.end());
      });
  Round round;
  size_t tokens = 0;
  for (const auto& output : outputs) {
    tokens += output.size();
    Detokenizer detokenizer(model->impl().tokenizer);
    std::string& text = round.texts.emplace_back();
    for (const int32_t id : output) text += detokenizer.push(id);
    text += detokenizer.flush();
  }
  round.tokens_per_second = static_cast<double>(tokens) / seconds;
  return round;
}

Round served_round(const std::shared_ptr<const Model>& model, const BenchOptions& o,
                   int concurrency) {
  std::vector<std::string> bodies;
  for (const Request& r : throughput_requests(*model, o, concurrency))
    bodies.push_back(Json{{"prompt", r.prompt},
                          {"max_tokens", r.max_tokens},
                          {"temperature", 0},
                          {"ignore_eos", true},
                          {"stream", true},
                          {"stream_options", {{"include_usage", true}}}}
                         .dump());
  Engine engine(model, throughput_engine(*model, concurrency));
  Server server({.port = 0, .io_threads = default_io_threads(), .model_name = "bench"});
  server.serve(engine, draft_options(o.draft, *model));

  asio::io_context io(1);
  std::vector<StreamedAnswer> answers(bodies.size());
  std::exception_ptr failure;
  const ServerAddress address{.port = server.port()};
  const auto ask = [&](size_t i) -> asio::awaitable<void> {
    StreamClient client(io.get_executor());
    co_await client.connect(address);
    answers[i] = co_await client.ask(bodies[i]);
  };
  const double begin = now_us();
  for (size_t i = 0; i < bodies.size(); ++i)
    asio::co_spawn(io, ask(i), [&](const std::exception_ptr& error) {
      if (error) failure = error;
    });
  io.run();
  const double seconds = (now_us() - begin) * 1e-6;
  if (failure) std::rethrow_exception(failure);
  Round round;
  int64_t tokens = 0;
  for (const StreamedAnswer& answer : answers) {
    StreamedText text = read_stream(answer);
    if (!text.error.empty()) fail(ErrorKind::kIo, "the server: {}", text.error);
    tokens += text.tokens;
    round.texts.push_back(std::move(text.text));
  }
  round.tokens_per_second = static_cast<double>(tokens) / seconds;
  return round;
}

}  // namespace

Json bench_overhead(const BenchOptions& o) {
  const auto model = load_model(o.model);
  // A line a request is part of serving, but not of the report.
  spdlog::set_default_logger(spdlog::null_logger_mt("bench"));
  Json rows = Json::array();
  for (const int concurrency : {1, o.max_concurrency}) {
    std::vector<double> direct, served, ratios;
    for (int i = 0; i < o.repetitions; ++i) {
      // Who goes first changes, so that a drift of the machine favours neither.
      Round with, without;
      if (i % 2 == 1) with = served_round(model, o, concurrency);
      without = direct_round(model, o, concurrency);
      if (i % 2 == 0) with = served_round(model, o, concurrency);
      if (with.texts != without.texts)
        fail(ErrorKind::kInternal, "the server's answers differ from the engine's");
      direct.push_back(without.tokens_per_second);
      served.push_back(with.tokens_per_second);
      ratios.push_back(served.back() / direct.back());
    }
    rows.push_back({{"concurrency", concurrency},
                    {"engine_tokens_per_second", median(direct)},
                    {"served_tokens_per_second", median(served)},
                    {"ratio", median(ratios)},
                    {"ratios", ratios}});
    if (!o.json)
      write_output(fmt::format(
          "concurrency {:>3}: engine {:.1f} tokens/s, over HTTP {:.1f} tokens/s; ratio {:.3f} "
          "(median of {}, {:.3f} to {:.3f})\n",
          concurrency, median(direct), median(served), median(ratios), o.repetitions,
          percentile(ratios, 0), percentile(ratios, 1)));
  }
  return rows;
}

}  // namespace peregrine
