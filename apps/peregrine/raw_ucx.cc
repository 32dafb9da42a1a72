#ifdef PEREGRINE_UCX
#include "raw_ucx.h"

#include <poll.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "base/fail.h"

namespace peregrine {
namespace {

constexpr size_t kUnderWay = 4;

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK)
    fail(ErrorKind::kIo, "raw UCX: {} failed ({})", what, ucs_status_string(status));
}

void append(std::vector<std::byte>& out, const void* data, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  out.insert(out.end(), at, at + bytes);
}

}  // namespace

struct RawUcx::State {
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  ucp_mem_h memory = nullptr;
  ucp_ep_h ep = nullptr;
  ucp_rkey_h key = nullptr;
  uint64_t remote = 0;
};

RawUcx::RawUcx(const std::string& transports) : state_(std::make_unique<State>()) {
  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "reading the configuration");
  check(ucp_config_modify(config, "TLS", transports.c_str()), "choosing transports");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  check(ucp_init(&params, config, &state_->context), "starting");
  ucp_config_release(config);
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SINGLE;
  check(ucp_worker_create(state_->context, &worker, &state_->worker), "making a worker");
}

RawUcx::~RawUcx() {
  if (state_->key != nullptr) ucp_rkey_destroy(state_->key);
  if (state_->memory != nullptr) ucp_mem_unmap(state_->context, state_->memory);
  ucp_worker_destroy(state_->worker);
  ucp_cleanup(state_->context);
}

// Sleeps when there is nothing to do: spinning would take the core that the other side needs.
void RawUcx::progress() {
  if (ucp_worker_progress(state_->worker) != 0 || ucp_worker_arm(state_->worker) != UCS_OK) return;
  int fd = -1;
  check(ucp_worker_get_efd(state_->worker, &fd), "waiting");
  pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
  ::poll(&event, 1, 1);
}

std::vector<std::byte> RawUcx::expose(std::span<const std::byte> bytes) {
  ucp_mem_map_params_t map{};
  map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  map.address = const_cast<std::byte*>(bytes.data());
  map.length = bytes.size();
  check(ucp_mem_map(state_->context, &map, &state_->memory), "registering memory");
  void* key = nullptr;
  size_t key_bytes = 0;
  check(ucp_rkey_pack(state_->context, state_->memory, &key, &key_bytes), "packing a key");
  ucp_address_t* address = nullptr;
  size_t address_bytes = 0;
  check(ucp_worker_get_address(state_->worker, &address, &address_bytes), "an address");
  const auto at = reinterpret_cast<uint64_t>(bytes.data());
  std::vector<std::byte> out;
  append(out, &at, sizeof(at));
  append(out, &key_bytes, sizeof(key_bytes));
  append(out, key, key_bytes);
  append(out, address, address_bytes);
  ucp_rkey_buffer_release(key);
  ucp_worker_release_address(state_->worker, address);
  return out;
}

void RawUcx::connect(std::span<const std::byte> exposed) {
  size_t key_bytes = 0;
  std::memcpy(&state_->remote, exposed.data(), sizeof(state_->remote));
  std::memcpy(&key_bytes, exposed.data() + 8, sizeof(key_bytes));
  const auto key = exposed.subspan(16, key_bytes);
  const auto address = exposed.subspan(16 + key_bytes);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  check(ucp_ep_create(state_->worker, &params, &state_->ep), "connecting");
  check(ucp_ep_rkey_unpack(state_->ep, key.data(), &state_->key), "unpacking a key");
}

void RawUcx::get(std::span<std::byte> out, size_t piece_bytes) {
  std::deque<void*> under_way;
  const auto finish_one = [&] {
    void* request = under_way.front();
    under_way.pop_front();
    while (ucp_request_check_status(request) == UCS_INPROGRESS) progress();
    check(ucp_request_check_status(request), "a get");
    ucp_request_free(request);
  };
  for (size_t done = 0; done < out.size(); done += piece_bytes) {
    if (under_way.size() == kUnderWay) finish_one();
    const size_t n = std::min(piece_bytes, out.size() - done);
    const ucp_request_param_t params{};
    void* request =
        ucp_get_nbx(state_->ep, out.data() + done, n, state_->remote + done, state_->key, &params);
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "a get");
    if (request != nullptr) under_way.push_back(request);
  }
  while (!under_way.empty()) finish_one();
}

}  // namespace peregrine
#endif
