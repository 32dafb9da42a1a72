// A socket address at which a port takes connections.
#pragma once

#include <arpa/inet.h>

#include <functional>
#include <string>
#include <utility>

#include "base/fail.h"
#include "kvshare/ucx/ucx_port.h"
#include "kvshare/ucx/wire.h"

namespace peregrine {

class UcxListener {
 public:
  // Called from the port's progress; accept() or reject() the request later, not in the call.
  using Called = std::function<void(ucp_conn_request_h)>;

  // Throws Error(kInvalidArgument), Error(kIo).
  UcxListener(UcxPort& port, const std::string& listen, Called called)
      : port_(port), called_(std::move(called)) {
    const SocketAddress address(listen, true);
    ucp_listener_params_t params{};
    params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr = address.get();
    params.conn_handler.arg = this;
    params.conn_handler.cb = [](ucp_conn_request_h request, void* self) {
      static_cast<UcxListener*>(self)->called_(request);
    };
    if (const ucs_status_t status = ucp_listener_create(port.worker(), &params, &listener_);
        status != UCS_OK)
      fail(ErrorKind::kIo, "{}: cannot listen there ({})", listen, ucs_status_string(status));
    ucp_listener_attr_t attr{};
    attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    ucp_listener_query(listener_, &attr);
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&attr.sockaddr);
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&attr.sockaddr);
    const bool is_v6 = attr.sockaddr.ss_family == AF_INET6;
    const std::string& host = address.host();
    address_ = fmt::format("{}:{}", host.find(':') == std::string::npos ? host : "[" + host + "]",
                           ntohs(is_v6 ? v6->sin6_port : v4->sin_port));
  }
  ~UcxListener() { ucp_listener_destroy(listener_); }
  UcxListener(const UcxListener&) = delete;
  UcxListener& operator=(const UcxListener&) = delete;

  const std::string& address() const { return address_; }  // with the port it has

  ucp_ep_h accept(ucp_conn_request_h request) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = request;
    return port_.open(params);
  }
  void reject(ucp_conn_request_h request) { ucp_listener_reject(listener_, request); }

 private:
  UcxPort& port_;
  const Called called_;
  ucp_listener_h listener_ = nullptr;
  std::string address_;
};

}  // namespace peregrine
