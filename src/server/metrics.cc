#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <fstream>

namespace peregrine {
namespace {

using prometheus::MetricType;

prometheus::MetricFamily single(const std::string& name, const std::string& help, MetricType type,
                                double value) {
  prometheus::ClientMetric metric;
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return {name, help, type, {metric}};
}

std::vector<prometheus::MetricFamily> engine_families(const EngineStats& s) {
  const auto count = [](const char* name, const char* help, double value) {
    return single(std::string("peregrine_") + name, help, MetricType::Counter, value);
  };
  const auto gauge = [](const char* name, const char* help, double value) {
    return single(std::string("peregrine_") + name, help, MetricType::Gauge, value);
  };
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  std::vector<prometheus::MetricFamily> all = {
      gauge("running_sequences", "Sequences in the batch", s.running),
      gauge("waiting_sequences", "Sequences in the queue", s.waiting),
      gauge("prefilling_sequences", "Sequences whose prompt is being read", s.prefilling),
      count("steps_total", "Steps of the model", number(s.steps)),
      count("prompt_tokens_total", "Prompt tokens computed", number(s.prompt_tokens)),
      count("cached_tokens_total", "Prompt tokens that the cache held", number(s.cached_tokens)),
      count("output_tokens_total", "Tokens generated", number(s.output_tokens)),
      count("preemptions_total", "Sequences put back into the queue", number(s.preemptions)),
      count("drafts_verified_total", "Drafted tokens verified", number(s.verified)),
      count("drafts_accepted_total", "Drafted tokens that stood", number(s.accepted)),
      gauge("kv_pages", "Pages of the KV cache", number(s.pages_total)),
      gauge("kv_pages_used", "Pages in use", number(s.pages_used)),
      gauge("kv_pages_cached", "Pages kept for reuse", number(s.pages_cached)),
      count("device_busy_seconds_total", "Time inside steps", s.device_busy_seconds),
      count("device_idle_seconds_total", "Time between steps with work left",
            s.device_idle_seconds),
      count("host_seconds_total", "Planning and post-processing", s.host_seconds),
      gauge("last_step_seconds", "Length of the last step", s.last_step_ms / 1000),
  };
  prometheus::MetricFamily verified{"peregrine_drafts_verified_by_position_total",
                                    "Drafted tokens verified, by place in the block",
                                    MetricType::Counter,
                                    {}};
  prometheus::MetricFamily accepted{"peregrine_drafts_accepted_by_position_total",
                                    "Drafted tokens that stood, by place in the block",
                                    MetricType::Counter,
                                    {}};
  for (size_t i = 0; i < s.verified_at.size(); ++i) {
    if (s.verified_at[i] == 0) continue;
    prometheus::ClientMetric metric;
    metric.label = {{"position", std::to_string(i + 1)}};
    metric.counter.value = number(s.verified_at[i]);
    verified.metric.push_back(metric);
    metric.counter.value = number(s.accepted_at[i]);
    accepted.metric.push_back(metric);
  }
  all.push_back(std::move(verified));
  all.push_back(std::move(accepted));
  return all;
}

const prometheus::Histogram::BucketBoundaries kSeconds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                          1,     2.5,  5,     10,   30,  60,   300};
const prometheus::Histogram::BucketBoundaries kDelays = {
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.05, 0.1, 0.5};

// Memory of this process that is in RAM; 0 where /proc is not there.
double resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  double all_pages = 0, resident_pages = 0;
  statm >> all_pages >> resident_pages;
  return resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(const Engine& of) : engine(of) {}

  prometheus::Histogram& histogram(const char* name, const char* help,
                                   const prometheus::Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }

  const Engine& engine;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests = prometheus::BuildCounter()
                                                          .Name("peregrine_requests_total")
                                                          .Help("Requests ended")
                                                          .Register(registry);
  prometheus::Histogram& ttft = histogram("peregrine_time_to_first_token_seconds",
                                          "From a request to its first token", kSeconds);
  prometheus::Histogram& total =
      histogram("peregrine_request_seconds", "From a request to its last token", kSeconds);
  prometheus::Histogram& delay =
      histogram("peregrine_loop_delay_seconds", "How late the event loop runs", kDelays);
};

Metrics::Metrics(const Engine& engine) : impl_(std::make_unique<Impl>(engine)) {}
Metrics::~Metrics() = default;

void Metrics::request_ended(const RequestRecord& record) {
  // Of several choices the first one's end names the request: labels must stay few.
  const std::string first = record.outcome.substr(0, record.outcome.find(','));
  impl_->requests.Add({{"endpoint", record.endpoint}, {"finish", first}}).Increment();
  impl_->ttft.Observe(record.ttft_ms / 1000);
  impl_->total.Observe(record.total_ms / 1000);
}

void Metrics::loop_delay(double seconds) { impl_->delay.Observe(seconds); }

std::string Metrics::text(int connections) const {
  std::vector<prometheus::MetricFamily> all = engine_families(impl_->engine.stats());
  all.push_back(
      single("peregrine_connections", "Open connections", MetricType::Gauge, connections));
  all.push_back(single("process_resident_memory_bytes", "Memory in RAM", MetricType::Gauge,
                       resident_bytes()));
  for (prometheus::MetricFamily& family : impl_->registry.Collect())
    all.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace peregrine
