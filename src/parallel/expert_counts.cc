#include "parallel/expert_counts.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "base/fail.h"

namespace peregrine {
namespace {

constexpr int kDeepest = 8;  // levels of JSON; counts need three

double checked(double value, const std::string& name, size_t layer, size_t expert) {
  if (!std::isfinite(value) || value < 0)
    fail(ErrorKind::kInvalidArgument,
         "{}: layer {}, expert {}: the count is {}, expected a number of 0 or more", name, layer,
         expert, value);
  return value;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

ExpertCounts from_json(std::string_view text, const std::string& name) {
  nlohmann::json document;
  try {
    document = nlohmann::json::parse(text, [](int depth, auto, const auto&) {
      if (depth > kDeepest) throw std::length_error("");
      return true;
    });
  } catch (const nlohmann::json::parse_error& error) {
    fail(ErrorKind::kInvalidArgument, "{}: not JSON at byte {}", name, error.byte);
  } catch (const std::length_error&) {
    fail(ErrorKind::kInvalidArgument, "{}: JSON of more than {} levels, expected three", name,
         kDeepest);
  }
  const nlohmann::json* layers = &document;
  if (document.is_object()) {
    if (!document.contains("counts"))
      fail(ErrorKind::kInvalidArgument, "{}: the object has no \"counts\"", name);
    layers = &document["counts"];
  }
  if (!layers->is_array())
    fail(ErrorKind::kInvalidArgument, "{}: the counts are a JSON {}, expected an array of layers",
         name, layers->type_name());
  ExpertCounts counts;
  for (const nlohmann::json& layer : *layers) {
    if (!layer.is_array())
      fail(ErrorKind::kInvalidArgument, "{}: layer {} is a JSON {}, expected an array of numbers",
           name, counts.size(), layer.type_name());
    std::vector<double> row;
    for (const nlohmann::json& value : layer) {
      if (!value.is_number())
        fail(ErrorKind::kInvalidArgument, "{}: layer {}, expert {}: a JSON {}, expected a number",
             name, counts.size(), row.size(), value.type_name());
      row.push_back(checked(value.get<double>(), name, counts.size(), row.size()));
    }
    counts.push_back(std::move(row));
  }
  return counts;
}

ExpertCounts from_csv(std::string_view text, const std::string& name) {
  ExpertCounts counts;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    std::vector<double> row;
    while (true) {
      const size_t comma = line.find(',');
      const std::string_view field = trimmed(line.substr(0, comma));
      double value = 0;
      const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
      if (error != std::errc() || stop != field.data() + field.size())
        fail(ErrorKind::kInvalidArgument, "{}: layer {}, expert {}: expected a number", name,
             counts.size(), row.size());
      row.push_back(checked(value, name, counts.size(), row.size()));
      if (comma == std::string_view::npos) break;
      line.remove_prefix(comma + 1);
    }
    counts.push_back(std::move(row));
  }
  return counts;
}

}  // namespace

ExpertCounts parse_expert_counts(std::string_view text, const std::string& name) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos)
    fail(ErrorKind::kInvalidArgument, "{}: empty, expected counts as JSON or CSV", name);
  const bool json = text[first] == '[' || text[first] == '{';
  ExpertCounts counts = json ? from_json(text, name) : from_csv(text, name);
  if (counts.empty() || counts.front().empty())
    fail(ErrorKind::kInvalidArgument, "{}: no counts, expected at least one layer and one expert",
         name);
  for (size_t layer = 1; layer < counts.size(); ++layer)
    if (counts[layer].size() != counts.front().size())
      fail(ErrorKind::kInvalidArgument, "{}: layer {} has {} experts, expected {} as in layer 0",
           name, layer, counts[layer].size(), counts.front().size());
  return counts;
}

ExpertCounts read_expert_counts(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || errno != 0)
    fail(ErrorKind::kIo, "{}: cannot read counts ({})", path, std::strerror(errno));
  return parse_expert_counts(text, path);
}

std::vector<double> stretch_counts(const ExpertCounts& recorded, size_t first, size_t experts) {
  constexpr size_t kTurn = 5;
  std::vector<double> counts;
  for (size_t i = 0; counts.size() < experts; ++i) {
    std::vector<double> layer = recorded[(first + i) % recorded.size()];
    std::rotate(layer.begin(), layer.begin() + static_cast<ptrdiff_t>(i * kTurn % layer.size()),
                layer.end());
    counts.insert(counts.end(), layer.begin(), layer.end());
  }
  counts.resize(experts);
  return counts;
}

std::vector<double> zipf_counts(size_t experts, double s, uint64_t seed) {
  std::vector<double> counts(experts);
  for (size_t k = 0; k < experts; ++k)
    counts[k] = std::floor(1e9 * std::pow(static_cast<double>(k + 1), -s));
  std::mt19937_64 random(seed);
  for (size_t i = experts - 1; i > 0; --i) std::swap(counts[i], counts[random() % (i + 1)]);
  return counts;
}

}  // namespace peregrine
