// Metric families for /metrics whose values are read off when it is asked for.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

namespace peregrine {

class MetricFamilies {
 public:
  // `prefix` stands in front of every name.
  explicit MetricFamilies(std::string prefix) : prefix_(std::move(prefix)) {}

  void count(const char* name, const char* help, double value);
  void gauge(const char* name, const char* help, double value);

  // One value for each label: ("rank", {{"0", 3}, {"1", 4}}).
  using Labelled = std::vector<std::pair<std::string, double>>;
  void counts(const char* name, const char* help, const char* label, const Labelled& values);
  void gauges(const char* name, const char* help, const char* label, const Labelled& values);

  std::string text() const;  // the text exposition format

 private:
  void add(const char* name, const char* help, prometheus::MetricType type, const char* label,
           const Labelled& values);

  const std::string prefix_;
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace peregrine
