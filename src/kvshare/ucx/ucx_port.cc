#include "kvshare/ucx/ucx_port.h"

#include <spdlog/spdlog.h>
#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <utility>

#include "base/fail.h"

namespace peregrine {
namespace {

// UCX reports lost peers as errors on standard output; here they are everyday events.
ucs_log_func_rc_t log_to_debug(const char*, unsigned, const char*, ucs_log_level_t,
                               const ucs_log_component_config_t*, const char* format,
                               va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof(text), format, arguments);
  spdlog::debug("UCX: {}", text);
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

UcxPort::UcxPort(const Options& options) : peer_failures_(options.peer_failures) {
  static std::once_flag once;
  std::call_once(once, [] { ucs_log_push_handler(log_to_debug); });
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK)
    fail(ErrorKind::kIo, "UCX: cannot be configured ({})", ucs_status_string(status));
  status = ucp_config_modify(config, "TLS", options.transports.c_str());
  if (status == UCS_OK && !options.devices.empty())
    status = ucp_config_modify(config, "NET_DEVICES", options.devices.c_str());
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  if (status == UCS_OK) status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (status != UCS_OK)
    fail(ErrorKind::kInvalidArgument, "UCX: no transport of \"{}\" on this machine ({})",
         options.transports, ucs_status_string(status));

  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context_, &worker, &worker_);
  if (status == UCS_OK) status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) {
    if (worker_ != nullptr) ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
    fail(ErrorKind::kIo, "UCX: cannot start ({})", ucs_status_string(status));
  }
}

UcxPort::~UcxPort() {
  // Closing takes a few rounds of progress; a peer that does not answer is not waited for.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (closing_ > 0 && std::chrono::steady_clock::now() < until) progress();
  failed_ = {};
  ucp_worker_destroy(worker_);
  ucp_cleanup(context_);
  // UCX forgets requests of peers that never answered.
  while (!pending_.empty()) finish(nullptr, UCS_ERR_CANCELED, *pending_.begin());
}

void UcxPort::finish(void* request, ucs_status_t status, Pending* pending) {
  const std::unique_ptr<Pending> owned(pending);
  pending->port->pending_.erase(pending);
  if (request != nullptr) ucp_request_free(request);
  if (pending->done) pending->done(status);
}

// What a call returned: under way, done at once, or refused.
void UcxPort::settle(void* request, Pending* pending) {
  if (UCS_PTR_IS_ERR(request))
    finish(nullptr, UCS_PTR_STATUS(request), pending);
  else if (request == nullptr)
    finish(nullptr, UCS_OK, pending);
}

std::vector<std::byte> UcxPort::address() const {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (const ucs_status_t status = ucp_worker_get_address(worker_, &address, &bytes);
      status != UCS_OK)
    fail(ErrorKind::kIo, "UCX: a worker has no address ({})", ucs_status_string(status));
  const auto* from = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(from, from + bytes);
  ucp_worker_release_address(worker_, address);
  return copy;
}

bool UcxPort::arm() { return ucp_worker_arm(worker_) == UCS_OK; }

ucs_status_t UcxPort::arrived(void* arg, const void* header, size_t header_bytes, void* data,
                              size_t bytes, const ucp_am_recv_param_t* param) {
  const auto* handler = static_cast<Handler*>(arg);
  UcxArrival arrival{
      .from = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0 ? param->reply_ep : nullptr,
      .header = {static_cast<const std::byte*>(header), header_bytes},
      .data = {},
      .offered = nullptr,
      .bytes = bytes};
  const bool offered = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (offered)
    arrival.offered = data;
  else
    arrival.data = {static_cast<const std::byte*>(data), bytes};
  (*handler)(arrival);
  // Offered data that the handler did not take is refused by returning UCS_OK; UCX itself knows
  // when it was taken.
  return UCS_OK;
}

void UcxPort::on_message(unsigned id, Handler handler) {
  handlers_.push_back(std::make_unique<Handler>(std::move(handler)));
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  params.id = id;
  params.cb = &UcxPort::arrived;
  params.arg = handlers_.back().get();
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  if (const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &params);
      status != UCS_OK)
    fail(ErrorKind::kIo, "UCX: cannot listen to messages ({})", ucs_status_string(status));
}

void UcxPort::send(ucp_ep_h to, Message message, Done done) {
  auto* pending = new Pending{this, std::move(message), std::move(done)};
  pending_.insert(pending);
  const Message& m = pending->message;
  const std::span<const std::byte> data = m.small.empty() ? m.data : std::span(m.small);
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_REPLY;
  params.cb.send = [](void* request, ucs_status_t status, void* user) {
    finish(request, status, static_cast<Pending*>(user));
  };
  params.user_data = pending;
  settle(ucp_am_send_nbx(to, m.id, m.header.data(), m.header.size(), data.data(), data.size(),
                         &params),
         pending);
}

void UcxPort::take(const UcxArrival& arrival, std::span<std::byte> room,
                   std::shared_ptr<const void> keep, Done done) {
  auto* pending = new Pending{this, {.keep = std::move(keep)}, std::move(done)};
  pending_.insert(pending);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user) {
    finish(request, status, static_cast<Pending*>(user));
  };
  params.user_data = pending;
  settle(ucp_am_recv_data_nbx(worker_, arrival.offered, room.data(), arrival.bytes, &params),
         pending);
}

ucp_ep_h UcxPort::open(ucp_ep_params_t params) {
  if (peer_failures_) {
    params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.arg = this;
    params.err_handler.cb = [](void* arg, ucp_ep_h ep, ucs_status_t status) {
      const auto* port = static_cast<UcxPort*>(arg);
      if (port->failed_) port->failed_(ep, status);
    };
  }
  ucp_ep_h ep = nullptr;
  return ucp_ep_create(worker_, &params, &ep) == UCS_OK ? ep : nullptr;
}

void UcxPort::close(ucp_ep_h ep) {
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  params.cb.send = [](void* request, ucs_status_t, void* user) {
    --static_cast<UcxPort*>(user)->closing_;
    ucp_request_free(request);
  };
  params.user_data = this;
  ++closing_;
  void* request = ucp_ep_close_nbx(ep, &params);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) --closing_;
}

}  // namespace peregrine
