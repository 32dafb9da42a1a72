#include "server/answer.h"

#include "server/conversation.h"

namespace peregrine {
namespace {

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(Service& service, std::shared_ptr<Exchange> exchange, AnswerPlan plan)
      : service_(service),
        exchange_(std::move(exchange)),
        plan_(std::move(plan)),
        open_(plan_.choices.size()) {}

  void start() {
    std::vector<std::shared_ptr<Generation>> started;
    try {
      const auto source = share_conversation(
          service_, exchange_->request(), plan_.choices,
          [self = shared_from_this()] { self->exchange_->post([self] { self->settled(); }); });
      unsettled_ = source.has_value();
      if (source) plan_.record.state = source_name(*source);
      for (size_t i = 0; i < plan_.choices.size(); ++i) {
        // Updates may come before begin(): they wait.
        auto deliver = [self = shared_from_this(), i](GenerationUpdate update) {
          auto shared = std::make_shared<GenerationUpdate>(std::move(update));
          self->exchange_->post([self, i, shared] { self->on_update(i, *shared); });
        };
        started.push_back(Generation::start(service_.engine, service_.tokenizer,
                                            std::move(plan_.choices[i]), std::move(deliver)));
      }
    } catch (...) {
      plan_.choices.clear();  // they may hold this answer
      exchange_->post([self = shared_from_this()] { self->over_ = true; });
      for (const auto& generation : started) generation->cancel();
      throw;
    }
    exchange_->post([self = shared_from_this(), started = std::move(started)]() mutable {
      self->begin(std::move(started));
    });
  }

 private:
  void begin(std::vector<std::shared_ptr<Generation>> started) {
    generations_ = std::move(started);
    exchange_->on_disconnect([self = shared_from_this()] { self->disconnected(); });
    plan_.formatter->begin();
    begun_ = true;
    for (auto& [choice, update] : std::exchange(early_, {})) on_update(choice, update);
  }

  void on_update(size_t choice, GenerationUpdate& update) {
    if (!begun_ && !over_) return early_.push_back({choice, std::move(update)});
    if (update.end) plan_.record.add(*update.end);
    if (!over_) pass_on(choice, update);
    if (update.end && --open_ == 0 && !unsettled_) finish();
  }

  // Whoever has read the whole answer may ask the next question of another server: the state has
  // to be announced by then.
  void settled() {
    unsettled_ = false;
    if (begun_ && open_ == 0) finish();
  }

  void pass_on(size_t choice, const GenerationUpdate& update) {
    if (update.end) {
      if (const std::optional<ApiError> error = failure(*update.end)) {
        over_ = true;
        plan_.formatter->fail(*error);
        return cancel();
      }
    }
    plan_.formatter->update(choice, update);
    if (update.end && plan_.on_end) plan_.on_end(choice, *update.end);
  }

  std::optional<ApiError> failure(const GenerationEnd& end) const {
    switch (end.reason) {
      case EndReason::kCancelled: {
        ApiError stopped{503, "the server is shutting down", {}, "shutting_down"};
        stopped.retry_after_seconds = 5;
        return stopped;
      }
      case EndReason::kDeadline:
        return ApiError{504, "the request took longer than its deadline", {}, "deadline_exceeded"};
      case EndReason::kError:
        return ApiError{500, "the model failed on this request", {}, "internal_error"};
      default:
        return std::nullopt;
    }
  }

  void finish() {
    if (!over_) plan_.formatter->end();
    over_ = true;
    log_request_end(plan_.record);
    service_.metrics.request_ended(plan_.record);
    generations_.clear();
  }

  void disconnected() {
    over_ = true;
    cancel();
  }

  void cancel() {
    for (const auto& generation : generations_) generation->cancel();
  }

  Service& service_;
  const std::shared_ptr<Exchange> exchange_;
  AnswerPlan plan_;
  size_t open_;                        // choices that have not ended
  bool unsettled_ = false;             // the conversation's new state may yet be announced
  bool begun_ = false, over_ = false;  // over: the formatter is not told anything any more
  std::vector<std::pair<size_t, GenerationUpdate>> early_;
  std::vector<std::shared_ptr<Generation>> generations_;
};

}  // namespace

void start_answer(Service& service, std::shared_ptr<Exchange> exchange, AnswerPlan plan) {
  std::make_shared<Answer>(service, std::move(exchange), std::move(plan))->start();
}

}  // namespace peregrine
