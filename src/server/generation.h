// One sequence of the engine, from token ids to what a protocol shows.
//
// Owns: detokenising, splitting into reasoning, content and calls, stop strings, and ending the
// request in the step in which one of these says so. Runs on the engine's thread; what it finds is
// passed to `deliver`, which must only hand it on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "peregrine/engine.h"
#include "server/stop_matcher.h"
#include "server/token_channels.h"
#include "text/output_parser.h"

namespace peregrine {

struct GenerationRequest {
  Request engine;     // prompt, sampling, max_tokens, stop_ids; not accept
  bool parse = true;  // false: everything is content
  OutputStart start = OutputStart::kContent;
  bool parse_tools = false;
  bool parallel_calls = true;     // false: ends after the first call
  std::string forced;             // output that the prompt ends with already
  std::vector<std::string> stop;  // looked for in content only
};

struct GenerationEnd {
  EndReason reason = EndReason::kStop;
  FinishReason finish = FinishReason::kStop;
  std::optional<std::string> stop_string;  // the one that ended it
  std::string error;                       // with EndReason::kError
  Usage usage;
  int64_t completion_tokens = 0;    // all that were generated
  int64_t reasoning_tokens = 0;     // of these, up to and including the end of reasoning
  std::vector<int32_t> output_ids;  // without the end token
  bool complete_turn = false;       // it ended by itself: the ids are exactly what was shown
};

// What has become visible since the last one.
struct GenerationUpdate {
  std::vector<OutputEvent> events;
  std::vector<VisibleToken> logprobs;  // when asked for
  std::optional<GenerationEnd> end;    // with the last update
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Submits; throws what Engine::submit() throws. `deliver` is released after the last update.
  static std::shared_ptr<Generation> start(Engine& engine, const Tokenizer& tokenizer,
                                           GenerationRequest request,
                                           std::function<void(GenerationUpdate)> deliver);
  // The last update then says kCancelled, unless it had ended.
  void cancel() { engine_.cancel(id_); }

 private:
  Generation(Engine& engine, const Tokenizer& tokenizer, GenerationRequest& request,
             std::function<void(GenerationUpdate)> deliver);
  size_t accept(std::span<const int32_t> tokens);
  void on_event(const Event& event);
  bool push_token(int32_t id);
  void push_text(const std::string& text);
  void take(std::vector<OutputEvent> events);
  void show(OutputEvent event);
  GenerationEnd make_end(const Event& event);
  bool must_end() const;

  Engine& engine_;
  RequestId id_ = 0;
  const std::vector<int32_t> stop_ids_;
  const bool wants_logprobs_, parallel_calls_;
  std::optional<int32_t> think_end_;
  std::function<void(GenerationUpdate)> deliver_;

  Detokenizer detokenizer_;
  std::optional<OutputParser> parser_;
  StopMatcher stops_;
  TokenChannels channels_;
  bool reasoning_;                        // no end of reasoning has been generated
  bool call_ended_ = false;               // at least one call is complete
  std::vector<std::string> token_texts_;  // of the run between accept() and its event
  GenerationUpdate update_;
  GenerationEnd end_;
};

}  // namespace peregrine
