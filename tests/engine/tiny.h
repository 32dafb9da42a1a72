// The tiny model of models/ and what the tests of sessions and generation ask of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/session_impl.h"
#include "peregrine/generation.h"
#include "peregrine/model.h"
#include "peregrine/session.h"
#include "support/fixtures.h"

namespace peregrine::test {

using Ids = std::vector<int32_t>;
using Rows = std::vector<float>;

// Sanitizers cost a factor of ten or more: large counts are divided, no case is left out.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
inline int reduced(int count, int divisor) { return kSanitized ? count / divisor : count; }

// Loaded once a test program and device.
inline std::shared_ptr<const Model> tiny_model(const std::string& device = "cpu") {
  static std::map<std::string, std::shared_ptr<const Model>> models;
  auto& model = models[device];
  if (!model) model = Model::load(model_path("tiny"), {.device = device, .threads = 1});
  return model;
}

struct Expected {
  std::string kind, text;
  Ids prompt, continuation;
  size_t robust_tokens = 0;
  std::vector<int> accepted_per_block;
};

// models/tiny/expected.jsonl
inline const std::vector<Expected>& expected_texts() {
  static const std::vector<Expected> all = [] {
    std::vector<Expected> list;
    std::ifstream file(model_path("tiny/expected.jsonl"));
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      list.push_back({json["kind"], json["prompt"], json["prompt_ids"], json["continuation_ids"],
                      json["robust_tokens"], json["draft_accepted_per_block"]});
    }
    return list;
  }();
  return all;
}

// Any ids at all: state must not depend on text that makes sense. The end token is left out.
inline Ids random_tokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Ids ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(3 + random() % 4075);
  return ids;
}

inline int32_t best_token(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

inline Rows copied(std::span<const float> rows) { return {rows.begin(), rows.end()}; }

// Bytes, not tolerances. The message names the first row that differs.
inline ::testing::AssertionResult same_bits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << a.size() << " logits against " << b.size();
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0)
    return ::testing::AssertionSuccess();
  size_t i = 0;
  while (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) ++i;
  const auto vocab = static_cast<size_t>(tiny_model()->vocab_size());
  return ::testing::AssertionFailure()
         << "row " << i / vocab << ", logit " << i % vocab << ": " << a[i] << " against " << b[i];
}

// Logits of `count` greedy steps that continue a session which has logits.
inline Rows greedy_rows(Session& session, int count) {
  Rows rows;
  for (int i = 0; i < count; ++i) {
    const auto row = session.step(best_token(session.logits()));
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

// The drafter's logits for the slots behind `anchor`, each slot fed the best token before it: they
// show every bit of the drafter's rings.
inline Rows draft_rows(Session& session, int32_t anchor, int count) {
  Session::Impl& s = session.impl();
  const DraftSegment segment{s.slot, session.length(), anchor, count};
  s.drafter->begin(std::span(&segment, 1));
  const int active[] = {0};
  const auto vocab = static_cast<size_t>(s.vocab());
  Rows rows(static_cast<size_t>(count) * vocab);
  int32_t previous = anchor;
  for (int i = 0; i < count; ++i) {
    s.drafter->next(i, active, std::span(&previous, 1));
    const auto row = std::span(rows).subspan(static_cast<size_t>(i) * vocab, vocab);
    s.backend().copy_out(row.data(), s.drafter->logits().data, row.size_bytes());
    previous = best_token(row);
  }
  return rows;
}

// Fails unless `call` throws Error(kind) with one sentence that contains `words`.
template <typename Call>
void expect_refusal(ErrorKind kind, const std::string& words, Call call) {
  try {
    call();
    ADD_FAILURE() << "nothing was refused; expected \"" << words << "\"";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

}  // namespace peregrine::test
