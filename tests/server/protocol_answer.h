// What the protocols' formatters write, without a network: an exchange that keeps it, and outputs
// of a model to format.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/answer.h"

namespace peregrine::test {

class KeptExchange : public Exchange {
 public:
  const HttpRequest& request() const override { return request_; }
  void add_header(std::string name, std::string value) override {
    request_.headers.emplace_back(std::move(name), std::move(value));
  }
  void respond(HttpResponse given) override { response = std::move(given); }
  void begin_stream(HttpHeaders headers) override { response.headers = std::move(headers); }
  void write(std::string events) override { stream += events; }
  void end_stream() override { ended = true; }
  void on_disconnect(std::function<void()>) override {}
  void post(std::function<void()> work) override { work(); }

  struct StreamEvent {
    std::string name;
    nlohmann::json data;
  };
  // Of the stream; each must be an "event:" line, a "data:" line whose type is the same, and a
  // blank line.
  std::vector<StreamEvent> events() const {
    std::vector<StreamEvent> all;
    for (size_t at = 0; at < stream.size();) {
      const size_t end = stream.find("\n\n", at), line = stream.find('\n', at);
      if (end == stream.npos || stream.compare(at, 7, "event: ") != 0 ||
          stream.compare(line + 1, 6, "data: ") != 0)
        throw std::runtime_error("no event: " + stream.substr(at, 200));
      all.push_back({stream.substr(at + 7, line - at - 7),
                     nlohmann::json::parse(stream.substr(line + 7, end - line - 7))});
      if (all.back().data["type"] != all.back().name) throw std::runtime_error("another type");
      at = end + 2;
    }
    return all;
  }
  // Names in order, repeated ones once.
  std::vector<std::string> event_names() const {
    std::vector<std::string> names;
    for (const StreamEvent& event : events())
      if (names.empty() || names.back() != event.name) names.push_back(event.name);
    return names;
  }
  nlohmann::json body() const { return nlohmann::json::parse(response.body); }

  HttpResponse response;
  std::string stream;
  bool ended = false;

 private:
  HttpRequest request_;
};

inline OutputEvent reasoning(std::string text) {
  return {OutputEvent::Kind::kReasoning, std::move(text), -1, {}};
}
inline OutputEvent content(std::string text) {
  return {OutputEvent::Kind::kContent, std::move(text), -1, {}};
}
inline std::vector<OutputEvent> call(int index, const std::string& name,
                                     const std::vector<std::string>& arguments,
                                     bool complete = true) {
  std::vector<OutputEvent> events = {
      {OutputEvent::Kind::kCallBegin, name, index, "call_" + std::to_string(index)}};
  for (const std::string& piece : arguments)
    events.push_back({OutputEvent::Kind::kArguments, piece, index, {}});
  if (complete) events.push_back({OutputEvent::Kind::kCallEnd, {}, index, {}});
  return events;
}

// 12 prompt tokens, 8 of them cached, 34 generated ones, 20 of them reasoning.
inline GenerationEnd end_of(FinishReason finish) {
  GenerationEnd end;
  end.finish = finish;
  end.reason = finish == FinishReason::kLength ? EndReason::kLength : EndReason::kStop;
  end.usage.prompt_tokens = 12;
  end.usage.cached_tokens = 8;
  end.completion_tokens = 34;
  end.reasoning_tokens = 20;
  return end;
}

// The whole life of an answer, an update for each event.
inline void format(AnswerFormatter& formatter, const std::vector<OutputEvent>& events,
                   const GenerationEnd& end) {
  formatter.begin();
  for (const OutputEvent& event : events) formatter.update(0, {.events = {event}});
  formatter.update(0, {.end = end});
  formatter.end();
}

inline std::vector<OutputEvent> join(std::vector<OutputEvent> a,
                                     const std::vector<OutputEvent>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace peregrine::test
