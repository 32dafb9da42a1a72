// What the text tests share: JSON lines of tests/data and the tokenizers they were made with.
#pragma once

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace peregrine::test {

// Properties try the same inputs in every run; RC_PARAMS of the environment overrides it.
inline const int kSeeded = setenv("RC_PARAMS", "seed=20250101 max_success=500", 0);

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline std::string text_data(const std::string& relative) {
  return read_text(std::string(PEREGRINE_TEST_DATA) + "/" + relative);
}

inline std::vector<nlohmann::ordered_json> read_cases(const std::string& relative) {
  std::istringstream lines(text_data(relative));
  std::vector<nlohmann::ordered_json> cases;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) cases.push_back(nlohmann::ordered_json::parse(line));
  }
  return cases;
}

// tokenizer.json of the fixtures with the added tokens of V4.1 laid over it.
inline std::string overlaid_tokenizer_json() {
  auto file = nlohmann::json::parse(text_data("tokenizer/tokenizer.json"));
  const auto overlay = nlohmann::json::parse(text_data("tokenizer/added_tokens_v41.json"));
  auto& added = file["added_tokens"];
  for (const auto& token : overlay["overlay"]) {
    bool replaced = false;
    for (auto& entry : added) {
      if (entry["id"] == token["id"]) {
        entry["content"] = token["content"];
        replaced = true;
      }
    }
    if (!replaced) added.push_back({{"id", token["id"]}, {"content", token["content"]}});
  }
  return file.dump();
}

inline const Tokenizer& fixture_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::from_json(overlaid_tokenizer_json(), "fixture");
  return tokenizer;
}

inline const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(std::string(PEREGRINE_MODELS) + "/tiny");
  return tokenizer;
}

}  // namespace peregrine::test
