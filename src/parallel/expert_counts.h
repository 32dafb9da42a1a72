// Files of expert counts: how often each expert of each layer was chosen.
//
// JSON: an array with one array of numbers a layer, or an object whose "counts" is one. CSV: a line
// a layer, numbers separated by commas; empty lines and lines that start with # are skipped. All
// layers have as many experts; counts are finite and not negative. Anything else is refused with a
// sentence that names the place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace peregrine {

using ExpertCounts = std::vector<std::vector<double>>;  // [layers][experts]

// `name` stands for the text in messages. Throws Error(kInvalidArgument).
ExpertCounts parse_expert_counts(std::string_view text, const std::string& name);

// Throws Error(kIo) when the file cannot be read.
ExpertCounts read_expert_counts(const std::string& path);

// Counts of `experts` experts made of recorded layers of fewer: layers side by side from `first`
// on, each turned a little further, so that no two stand in the same order. Real loads, but of
// several layers; whoever shows results says so.
std::vector<double> stretch_counts(const ExpertCounts& recorded, size_t first, size_t experts);

// Zipf's law in a fixed random order: the expert at place k is chosen in proportion to k^-s.
std::vector<double> zipf_counts(size_t experts, double s, uint64_t seed);

}  // namespace peregrine
