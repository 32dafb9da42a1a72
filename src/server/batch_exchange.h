// A request of a batch file in the place of an HTTP request, so that the same handlers answer it.
//
// Owns: one request, and the way of its work back to the thread that runs the batch. There is no
// client that could leave and nobody to stream to.
#pragma once

#include <deque>
#include <functional>
#include <mutex>

#include "server/http.h"

namespace peregrine {

// Work from any thread for one thread, in order.
class BatchWork {
 public:
  BatchWork();
  ~BatchWork();
  BatchWork(const BatchWork&) = delete;
  BatchWork& operator=(const BatchWork&) = delete;

  void post(std::function<void()> work);
  // Runs what has been posted, also by that work itself.
  void run();
  // Drops what is left and all that comes later.
  void close();
  int descriptor() const { return wake_; }  // readable while there is work

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> work_;
  bool closed_ = false;
  int wake_ = -1;
};

class BatchExchange : public Exchange {
 public:
  // `done` is called once, on the thread that runs the work.
  BatchExchange(std::shared_ptr<BatchWork> work, HttpRequest request,
                std::function<void(HttpResponse)> done)
      : work_(std::move(work)), request_(std::move(request)), done_(std::move(done)) {}

  const HttpRequest& request() const override { return request_; }
  void add_header(std::string name, std::string value) override {
    request_.headers.emplace_back(std::move(name), std::move(value));
  }
  void respond(HttpResponse response) override;
  void begin_stream(HttpHeaders headers) override;
  void write(std::string events) override;
  void end_stream() override;
  void on_disconnect(std::function<void()>) override {}
  void post(std::function<void()> work) override { work_->post(std::move(work)); }

  // The handler has read it; prompts may be long and answers slow.
  void forget_body() { request_.body = std::string(); }

 private:
  const std::shared_ptr<BatchWork> work_;
  HttpRequest request_;
  std::function<void(HttpResponse)> done_;
};

}  // namespace peregrine
