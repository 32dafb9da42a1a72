#include "server/metric_families.h"

#include <prometheus/text_serializer.h>

namespace peregrine {

using prometheus::MetricType;

void MetricFamilies::count(const char* name, const char* help, double value) {
  add(name, help, MetricType::Counter, nullptr, {{"", value}});
}
void MetricFamilies::gauge(const char* name, const char* help, double value) {
  add(name, help, MetricType::Gauge, nullptr, {{"", value}});
}
void MetricFamilies::counts(const char* name, const char* help, const char* label,
                            const Labelled& values) {
  add(name, help, MetricType::Counter, label, values);
}
void MetricFamilies::gauges(const char* name, const char* help, const char* label,
                            const Labelled& values) {
  add(name, help, MetricType::Gauge, label, values);
}

void MetricFamilies::add(const char* name, const char* help, MetricType type, const char* label,
                         const Labelled& values) {
  prometheus::MetricFamily family{prefix_ + name, help, type, {}};
  for (const auto& [word, value] : values) {
    prometheus::ClientMetric metric;
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    if (label != nullptr) metric.label = {{label, word}};
    family.metric.push_back(std::move(metric));
  }
  families_.push_back(std::move(family));
}

std::string MetricFamilies::text() const {
  return prometheus::TextSerializer().Serialize(families_);
}

}  // namespace peregrine
