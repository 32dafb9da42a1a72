#include "sharing_options.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "base/fail.h"
#include "kvshare/local_directory.h"
#include "kvshare/redis_directory.h"

namespace peregrine {
namespace {

std::string read_secret(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorKind::kIo, "--kv-secret-file {}: cannot be read", path);
  std::string secret{std::istreambuf_iterator<char>(file), {}};
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  return secret;
}

FetchedState fetched(FetchResult result) {
  FetchedState state{.image = std::move(result.image),
                     .failure = {},
                     .message = {},
                     .bytes = result.bytes,
                     .seconds = result.seconds};
  if (result.outcome != FetchOutcome::kFetched) {
    state.image = nullptr;
    state.failure = outcome_name(result.outcome);
    state.message = std::move(result.message);
    state.owner_fault =
        result.outcome == FetchOutcome::kUnreachable || result.outcome == FetchOutcome::kDeadline ||
        result.outcome == FetchOutcome::kRefused || result.outcome == FetchOutcome::kOtherEngine;
  }
  return state;
}

}  // namespace

void add_sharing_options(CLI::App& command, SharingFlags& f) {
  command.add_option("--kv-directory", f.directory,
                     "Who has which conversation: local (this server alone), redis://host:port or "
                     "unix:/path (default: conversations are not kept)");
  command.add_option("--kv-prefix", f.prefix, "Of all keys in Redis (default: peregrine)");
  command.add_option("--kv-memory", f.memory_bytes,
                     "Bytes of host memory for states of conversations (default: 1 GiB)");
  command.add_option("--kv-dir", f.disk_directory,
                     "Folder for states that host memory has no room for (default: none)");
  command.add_option("--kv-dir-bytes", f.disk_bytes, "Its size (default: 16 GiB)");
  command
      .add_option("--kv-prepare", f.max_prepared,
                  "Requests whose state is fetched or waits in memory at a time (default: 6)")
      ->check(CLI::Range(1, 1024));
  command.add_option("--kv-listen", f.listen,
                     "host:port at which other servers read states from this one");
  command.add_option("--kv-transport", f.transport, "auto, tcp, shm or rdma (default: auto)")
      ->check(CLI::IsMember({"auto", "tcp", "shm", "rdma"}));
  command.add_option("--kv-secret-file", f.secret_file,
                     "File with what all sharing servers know, at least 16 bytes");
}

SharingSetup::SharingSetup(const SharingFlags& flags, Engine& engine) {
  const RedisAddress redis =
      flags.directory == "local" ? RedisAddress{} : RedisAddress::parse(flags.directory);
  vault_ = std::make_unique<StateVault>(VaultOptions{.shape = engine.state_shape(),
                                                     .memory_bytes = flags.memory_bytes,
                                                     .directory = flags.disk_directory,
                                                     .disk_bytes = flags.disk_bytes});
  SharingOptions options{.fetch = {},
                         .address = "local",
                         .max_prepared = flags.max_prepared,
                         .max_waiting = engine.options().max_waiting};
  if (flags.directory != "local" && flags.listen.empty())
    fail(ErrorKind::kInvalidArgument,
         "--kv-directory {}: expected --kv-listen with it, where other servers read states",
         redis.name());
  if (!flags.listen.empty()) {
    if (flags.secret_file.empty())
      fail(ErrorKind::kInvalidArgument, "--kv-listen {}: expected --kv-secret-file with it",
           flags.listen);
    const std::string secret = read_secret(flags.secret_file);
    const PeerTransport transport = parse_transport(flags.transport);
    server_ = std::make_unique<TransferServer>(
        *vault_,
        TransferServerOptions{.listen = flags.listen, .secret = secret, .transport = transport});
    client_ =
        std::make_unique<TransferClient>(TransferClientOptions{.shape = engine.state_shape(),
                                                               .secret = secret,
                                                               .transport = transport,
                                                               .address = server_->address()});
    options.address = server_->address();
    options.serving = [this] { return server_->stats(); };
    options.fetch_memory = [this] { return client_->memory_bytes(); };
    options.fetch = [this](const std::string& address, const std::string& key,
                           std::span<const int32_t> tokens, int64_t min_tokens) {
      return fetched(client_->fetch(
          {.address = address, .key = key, .tokens = tokens, .min_tokens = min_tokens}));
    };
  }
  const auto make_directory = [&](std::string owner,
                                  DirectoryNotices notices) -> std::unique_ptr<Directory> {
    if (flags.directory == "local")
      return std::make_unique<LocalDirectory>(std::move(owner), std::move(notices));
    return std::make_unique<RedisDirectory>(RedisDirectoryOptions{.address = redis,
                                                                  .prefix = flags.prefix,
                                                                  .owner = std::move(owner),
                                                                  .notices = std::move(notices)});
  };
  sharing_ = std::make_unique<Sharing>(engine, *vault_, make_directory, std::move(options));
}

SharingSetup::~SharingSetup() = default;

}  // namespace peregrine
