#include "server/generation.h"

#include <algorithm>

#include "text/control_tokens.h"

namespace peregrine {

Generation::Generation(Engine& engine, const Tokenizer& tokenizer, GenerationRequest& request,
                       std::function<void(GenerationUpdate)> deliver)
    : engine_(engine),
      stop_ids_(request.engine.stop_ids),
      wants_logprobs_(request.engine.sampling.logprobs.has_value()),
      parallel_calls_(request.parallel_calls),
      think_end_(tokenizer.id_of(control::kThinkEnd)),
      deliver_(std::move(deliver)),
      detokenizer_(tokenizer),
      stops_(std::move(request.stop)),
      reasoning_(request.parse && request.start == OutputStart::kReasoning) {
  if (request.parse)
    parser_.emplace(OutputParser::Options{.start = request.start,
                                          .parse_tools = request.parse_tools,
                                          .make_call_id = random_call_id});
}

std::shared_ptr<Generation> Generation::start(Engine& engine, const Tokenizer& tokenizer,
                                              GenerationRequest request,
                                              std::function<void(GenerationUpdate)> deliver) {
  const std::shared_ptr<Generation> self(
      new Generation(engine, tokenizer, request, std::move(deliver)));
  if (!request.forced.empty()) {
    self->push_text(request.forced);
    self->reasoning_ = false;
  }
  request.engine.accept = [self](std::span<const int32_t> tokens) { return self->accept(tokens); };
  self->id_ = engine.submit(std::move(request.engine),
                            [self](const Event& event) { self->on_event(event); });
  return self;
}

// The engine ends a request only when fewer tokens than given are taken. An end at the last of them
// therefore gives that one back, although its text counts; make_end() knows the true number.
size_t Generation::accept(std::span<const int32_t> tokens) {
  token_texts_.clear();
  for (size_t i = 0; i < tokens.size(); ++i)
    if (push_token(tokens[i])) return std::min(i + 1, tokens.size() - 1);
  return tokens.size();
}

// True: generation ends here.
bool Generation::push_token(int32_t id) {
  ++end_.completion_tokens;
  if (reasoning_) ++end_.reasoning_tokens;
  if (id == think_end_) reasoning_ = false;
  if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end()) {
    token_texts_.emplace_back();
    return false;
  }
  end_.output_ids.push_back(id);
  token_texts_.push_back(detokenizer_.push(id));
  push_text(token_texts_.back());
  return must_end();
}

bool Generation::must_end() const {
  return stops_.matched() || (parser_ && parser_->calls_complete()) ||
         (call_ended_ && !parallel_calls_);
}

void Generation::push_text(const std::string& text) {
  if (text.empty()) return;
  if (parser_) {
    take(parser_->push(text));
  } else {
    show({OutputEvent::Kind::kContent, text});
  }
}

void Generation::take(std::vector<OutputEvent> events) {
  for (OutputEvent& event : events) show(std::move(event));
}

void Generation::show(OutputEvent event) {
  using Kind = OutputEvent::Kind;
  if (stops_.matched() || (call_ended_ && !parallel_calls_)) return;
  if (event.kind == Kind::kContent) {
    event.text = stops_.push(event.text);
    if (event.text.empty()) return;
  } else if (event.kind == Kind::kCallBegin) {
    // Markup follows, in which no stop string is looked for.
    if (std::string held = stops_.flush(); !held.empty())
      update_.events.push_back({Kind::kContent, std::move(held)});
  }
  call_ended_ |= event.kind == Kind::kCallEnd;
  update_.events.push_back(std::move(event));
}

void Generation::on_event(const Event& event) {
  if (event.finished) update_.end = make_end(event);
  if (wants_logprobs_) {
    for (size_t i = 0; i < event.logprobs.size() && i < token_texts_.size(); ++i)
      channels_.made(event.logprobs[i], token_texts_[i]);
    for (const OutputEvent& e : update_.events) {
      if (e.kind == OutputEvent::Kind::kReasoning || e.kind == OutputEvent::Kind::kContent)
        channels_.shown(e.kind == OutputEvent::Kind::kReasoning, e.text);
    }
    update_.logprobs = channels_.take();
  }
  token_texts_.clear();
  if (update_.events.empty() && !update_.end) return;
  deliver_(std::exchange(update_, {}));
  if (event.finished) deliver_ = nullptr;
}

GenerationEnd Generation::make_end(const Event& event) {
  const StopCause cause = stops_.matched()                     ? StopCause::kStopString
                          : event.reason == EndReason::kLength ? StopCause::kLength
                                                               : StopCause::kEndOfTurn;
  push_text(detokenizer_.flush());
  if (parser_) {
    take(parser_->finish(cause));
    end_.finish = parser_->finish_reason();
  } else {
    end_.finish = cause == StopCause::kLength ? FinishReason::kLength : FinishReason::kStop;
  }
  if (stops_.matched()) {
    end_.stop_string = stops_.match();
  } else if (std::string held = stops_.flush(); !held.empty()) {
    update_.events.push_back({OutputEvent::Kind::kContent, std::move(held)});
  }
  end_.reason = event.reason;
  end_.error = event.error;
  end_.usage = *event.usage;
  end_.complete_turn = event.reason == EndReason::kStop && !stops_.matched() &&
                       (!parser_ || parallel_calls_ || !call_ended_ || parser_->calls_complete());
  return std::move(end_);
}

}  // namespace peregrine
