// bench transfer: reading a state of another process, beside what the machine and UCX itself do
// with as many bytes in the same run (spec: kv-sharing.md).
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/fail.h"
#include "bench.h"
#include "kvshare/transfer.h"
#include "output.h"
#ifdef PEREGRINE_UCX
#include <poll.h>

#include "kvshare/ucx/ucx_port.h"
#include "raw_ucx.h"
#endif

namespace peregrine {

using Json = nlohmann::ordered_json;

#ifndef PEREGRINE_UCX
Json bench_transfer(const BenchOptions&) {
  fail(ErrorKind::kInvalidArgument,
       "bench transfer: this build has no UCX, expected libucx-dev when it was configured");
}
#else
namespace {

constexpr int kRepetitions = 15;
constexpr int kGets = 2;  // emulated gets are slow
constexpr unsigned kRawMessage = 7;
const char* const kSecret = "only between the two processes of a benchmark";
const std::string kKey(64, '0');

// KV rows of the released model: 890 bytes a token.
StateShape released_shape() {
  StateShape shape;
  shape.vocab_size = 129280;
  shape.context_tokens = 1 << 20;
  for (const int ratio : {2, 2, 2, 1})
    shape.sources.push_back({.ratio = ratio, .main_row_bytes = 288, .index_row_bytes = 68});
  return shape;
}

SavedState synthetic_state(const StateShape& shape, int64_t tokens) {
  SavedState state;
  for (int64_t i = 0; i < tokens; ++i)
    state.tokens.push_back(static_cast<int32_t>(i * 7919 % shape.vocab_size));
  const auto fill = [](std::vector<std::byte>& bytes, uint64_t size, uint64_t seed) {
    bytes.resize(size);
    for (size_t i = 0; i + 8 <= size; i += 8) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(bytes.data() + i, &seed, 8);
    }
  };
  for (size_t i = 0; i < shape.sources.size(); ++i) {
    const auto rows = static_cast<uint64_t>(shape.rows(i, tokens));
    SavedState::Source& source = state.sources.emplace_back();
    fill(source.main, rows * shape.sources[i].main_row_bytes, 2 * i + 1);
    fill(source.index, rows * shape.sources[i].index_row_bytes, 2 * i + 2);
  }
  return state;
}

// Both ends of the pipes between the two processes.
struct Pipe {
  int in = -1, out = -1;

  void put(std::span<const std::byte> bytes) const {
    const uint64_t size = bytes.size();
    put_all(&size, sizeof(size));
    put_all(bytes.data(), bytes.size());
  }
  std::vector<std::byte> take() const {
    uint64_t size = 0;
    if (!take_all(&size, sizeof(size))) fail(ErrorKind::kIo, "bench transfer: a process ended");
    std::vector<std::byte> bytes(size);
    take_all(bytes.data(), size);
    return bytes;
  }
  void put(const std::string& text) const { put(std::as_bytes(std::span(text))); }
  std::string take_text() const {
    const auto bytes = take();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool waiting() const {
    pollfd fd{.fd = in, .events = POLLIN, .revents = 0};
    return ::poll(&fd, 1, 0) > 0;
  }

 private:
  void put_all(const void* data, size_t size) const {
    if (size > 0 && ::write(out, data, size) != static_cast<ssize_t>(size))
      fail(ErrorKind::kIo, "bench transfer: the other process is gone");
  }
  bool take_all(void* data, size_t size) const {
    auto* at = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t n = ::read(in, at, size);
      if (n <= 0) return false;
      at += n;
      size -= static_cast<size_t>(n);
    }
    return true;
  }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// As RawUcx::progress().
void progress(UcxPort& port) {
  if (port.progress() || !port.arm()) return;
  pollfd event{.fd = port.event_fd(), .events = POLLIN, .revents = 0};
  ::poll(&event, 1, 1);
}

// The owner's process: keeps one state and serves each of the three ways to read it in turn.
void own(const Pipe& pipe, const std::string& transport, int64_t tokens) {
  const StateShape shape = released_shape();
  StateVault vault({.shape = shape, .memory_bytes = 4ull << 30});
  vault.put(kKey, {"0", 1}, StateImage::build(synthetic_state(shape, tokens), shape));
  {
    const TransferServer server(
        vault,
        {.listen = "127.0.0.1:0", .secret = kSecret, .transport = parse_transport(transport)});
    pipe.put(server.address());
    pipe.take();
  }
  const PinnedImage image = vault.pin(kKey);
  {
    RawUcx raw(transport);
    pipe.put(raw.expose(image->bytes()));
    while (!pipe.waiting()) raw.progress();
    pipe.take();
  }
  UcxPort port({.transports = transport, .peer_failures = false});
  pipe.put("ready");
  const auto address = pipe.take();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  const ucp_ep_h ep = port.open(params);
  for (int i = 0; i < kRepetitions; ++i) {
    pipe.take();
    bool sent = false;
    port.send(ep,
              {.id = kRawMessage, .header = {}, .small = {}, .data = image->bytes(), .keep = image},
              [&](ucs_status_t) { sent = true; });
    while (!sent) progress(port);
  }
  while (!pipe.waiting()) progress(port);
  pipe.take();
}

double best_fetch(const std::string& address, const std::string& transport,
                  const std::vector<int32_t>& tokens) {
  TransferClient client(
      {.shape = released_shape(), .secret = kSecret, .transport = parse_transport(transport)});
  double best = 1e30;
  for (int i = 0; i < kRepetitions; ++i) {
    const FetchResult result = client.fetch(
        {.address = address, .key = kKey, .tokens = tokens, .deadline = std::chrono::seconds(60)});
    if (result.outcome != FetchOutcome::kFetched)
      fail(ErrorKind::kIo, "bench transfer: {} ({})", outcome_name(result.outcome), result.message);
    best = std::min(best, result.seconds);
  }
  return best;
}

double best_get(const std::string& transport, std::span<const std::byte> exposed,
                std::span<std::byte> out) {
  double best = 1e30;
  RawUcx raw(transport);
  raw.connect(exposed);
  for (int i = 0; i < kGets; ++i) {
    const auto start = std::chrono::steady_clock::now();
    raw.get(out, size_t{8} << 20);
    best = std::min(best, seconds_since(start));
  }
  return best;
}

double best_rendezvous(const Pipe& pipe, const std::string& transport, std::span<std::byte> out) {
  UcxPort port({.transports = transport, .peer_failures = false});
  bool arrived = false;
  port.on_message(kRawMessage, [&](const UcxArrival& arrival) {
    port.take(arrival, out, nullptr, [&](ucs_status_t) { arrived = true; });
  });
  pipe.take();
  pipe.put(port.address());
  double best = 1e30;
  for (int i = 0; i < kRepetitions; ++i) {
    arrived = false;
    const auto start = std::chrono::steady_clock::now();
    pipe.put("go");
    while (!arrived) progress(port);
    best = std::min(best, seconds_since(start));
  }
  pipe.put("done");
  return best;
}

double best_copy(std::span<std::byte> out) {
  const std::vector<std::byte> from(out.size(), std::byte{1});
  double best = 1e30;
  for (int i = 0; i < kRepetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(out.data(), from.data(), out.size());
    best = std::min(best, seconds_since(start));
  }
  return best;
}

Json measure(const std::string& transport, int64_t tokens) {
  int there[2], back[2];
  if (::pipe(there) != 0 || ::pipe(back) != 0)
    fail(ErrorKind::kIo, "bench transfer: no pipe to a second process");
  const pid_t child = ::fork();
  if (child < 0) fail(ErrorKind::kIo, "bench transfer: no second process");
  if (child == 0) {
    ::close(there[1]);
    ::close(back[0]);
    try {
      own({.in = there[0], .out = back[1]}, transport, tokens);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "the owner: %s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  ::close(there[0]);
  ::close(back[1]);
  const Pipe pipe{.in = back[0], .out = there[1]};

  const StateShape shape = released_shape();
  const uint64_t bytes = shape.row_bytes(tokens);
  const auto ids = synthetic_state(shape, tokens).tokens;
  const std::string address = pipe.take_text();
  const double fetch = best_fetch(address, transport, ids);
  pipe.put("done");
  const auto exposed = pipe.take();
  // As many bytes as the image: the raw ways move them all at once.
  const uint64_t image_bytes =
      StateManifest::of(synthetic_state(shape, tokens), shape).image_bytes();
  std::vector<std::byte> room(image_bytes);
  const double get = best_get(transport, exposed, room);
  pipe.put("done");
  const double rendezvous = best_rendezvous(pipe, transport, room);
  const double copy = best_copy(room);
  ::waitpid(child, nullptr, 0);
  ::close(pipe.in);
  ::close(pipe.out);
  const auto rate = [&](double seconds) {
    return static_cast<double>(image_bytes) / seconds * 1e-9;
  };
  return {{"transport", transport},
          {"tokens", tokens},
          {"bytes", bytes},
          {"seconds", fetch},
          {"gb_per_second", rate(fetch)},
          {"memcpy_gb_per_second", rate(copy)},
          {"raw_get_gb_per_second", rate(get)},
          {"raw_rendezvous_gb_per_second", rate(rendezvous)},
          {"share_of_raw_get", get / fetch},
          {"share_of_raw_rendezvous", rendezvous / fetch}};
}

}  // namespace

Json bench_transfer(const BenchOptions& options) {
  Json rows = Json::array();
  if (!options.json)
    write_output(fmt::format("{:>9} {:>9} {:>8} {:>9} {:>7} {:>8} {:>8} {:>11} {:>7} {:>11}\n",
                             "transport", "tokens", "MB", "seconds", "GB/s", "memcpy", "raw get",
                             "rendezvous", "of get", "of rendez."));
  for (const char* transport : {"tcp", "shm"}) {
    for (const int64_t tokens : {int64_t{131'072}, int64_t{1'048'576}}) {
      const Json row = measure(transport, tokens);
      rows.push_back(row);
      if (options.json) continue;
      write_output(fmt::format(
          "{:>9} {:>9} {:>8.1f} {:>9.4f} {:>7.2f} {:>8.2f} {:>8.2f} {:>11.2f} {:>6.0f}% "
          "{:>10.0f}%\n",
          transport, tokens, row["bytes"].get<double>() * 1e-6, row["seconds"].get<double>(),
          row["gb_per_second"].get<double>(), row["memcpy_gb_per_second"].get<double>(),
          row["raw_get_gb_per_second"].get<double>(),
          row["raw_rendezvous_gb_per_second"].get<double>(),
          100 * row["share_of_raw_get"].get<double>(),
          100 * row["share_of_raw_rendezvous"].get<double>()));
    }
  }
  return rows;
}
#endif

}  // namespace peregrine
