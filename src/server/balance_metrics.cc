#include "server/balance_metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

namespace peregrine {

std::string balance_text(const BalanceStats& s) {
  std::vector<prometheus::MetricFamily> all;
  const auto count = [&](const char* name, const char* help, double value) {
    prometheus::ClientMetric metric;
    metric.counter.value = value;
    all.push_back({std::string("peregrine_experts_") + name,
                   help,
                   prometheus::MetricType::Counter,
                   {std::move(metric)}});
  };
  count("rearrangements_total", "Times that experts moved between ranks",
        static_cast<double>(s.rearrangements));
  count("read_total", "Experts that were new to rank 0", static_cast<double>(s.experts_read));
  count("read_bytes_total", "Bytes of them", static_cast<double>(s.bytes_read));
  count("stall_seconds_total", "Time that steps waited for counts, plans and switches",
        s.stall_seconds);
  prometheus::MetricFamily balance{"peregrine_experts_slowest_over_mean",
                                   "Rows of the busiest rank over the mean, in the last window",
                                   prometheus::MetricType::Gauge,
                                   {}};
  for (size_t layer = 0; layer < s.slowest_over_mean.size(); ++layer) {
    prometheus::ClientMetric metric;
    metric.gauge.value = s.slowest_over_mean[layer];
    metric.label = {{"layer", std::to_string(layer)}};
    balance.metric.push_back(std::move(metric));
  }
  all.push_back(std::move(balance));
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace peregrine
