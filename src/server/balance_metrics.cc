#include "server/balance_metrics.h"

#include "server/metric_families.h"

namespace peregrine {

std::string balance_text(const BalanceStats& s) {
  MetricFamilies all("peregrine_experts_");
  all.count("rearrangements_total", "Times that experts moved between ranks",
            static_cast<double>(s.rearrangements));
  all.count("read_total", "Experts that were new to rank 0", static_cast<double>(s.experts_read));
  all.count("read_bytes_total", "Bytes of them", static_cast<double>(s.bytes_read));
  all.count("stall_seconds_total", "Time that steps waited for counts, plans and switches",
            s.stall_seconds);
  MetricFamilies::Labelled layers;
  for (size_t layer = 0; layer < s.slowest_over_mean.size(); ++layer)
    layers.emplace_back(std::to_string(layer), s.slowest_over_mean[layer]);
  all.gauges("slowest_over_mean", "Rows of the busiest rank over the mean, in the last window",
             "layer", layers);
  return all.text();
}

}  // namespace peregrine
