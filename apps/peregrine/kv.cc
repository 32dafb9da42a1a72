// peregrine kv: what a server keeps of conversations, for its operator: the files of its folder and
// the records of the directory in Redis. Nothing here needs a model or a running server.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fail.h"
#include "base/hex.h"
#include "commands.h"
#include "kvshare/redis_records.h"
#include "kvshare/state_file.h"
#include "kvshare/state_file_name.h"
#include "output.h"

namespace peregrine {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kRedisLimit{5};

struct KvOptions {
  std::string folder;     // of a vault; empty: none
  std::string directory;  // address of Redis; empty: none
  std::string prefix = "peregrine";
  std::string key;  // or the digits it begins with
};

struct StateFile {
  std::string path;
  StateFileName name;
};

std::vector<StateFile> state_files(const KvOptions& o) {
  std::vector<StateFile> files;
  if (o.folder.empty()) return files;
  std::error_code error;
  for (fs::directory_iterator it(o.folder, error), end; !error && it != end; it.increment(error)) {
    if (auto name = StateFileName::parse(it->path().filename().string());
        name && name->key.starts_with(o.key))
      files.push_back({it->path().string(), std::move(*name)});
  }
  if (error) fail(ErrorKind::kIo, "--kv-dir {}: cannot be listed ({})", o.folder, error.message());
  std::sort(files.begin(), files.end(),
            [](const StateFile& a, const StateFile& b) { return a.path < b.path; });
  return files;
}

struct Found {
  std::vector<StateFile> files;
  std::unique_ptr<RedisConnection> redis;
  std::vector<StoredRecord> records;
};

Found find(const KvOptions& o) {
  if (o.folder.empty() && o.directory.empty())
    fail(ErrorKind::kInvalidArgument, "kv: expected --kv-dir, --kv-directory or both");
  if (!is_hex(o.key))
    fail(ErrorKind::kInvalidArgument,
         "kv: key \"{}\", expected the hexadecimal digits that it begins with", o.key);
  Found found{.files = state_files(o), .redis = nullptr, .records = {}};
  if (o.directory.empty()) return found;
  found.redis = std::make_unique<RedisConnection>(RedisAddress::parse(o.directory), kRedisLimit);
  found.records = stored_records(*found.redis, o.prefix);
  std::erase_if(found.records,
                [&](const StoredRecord& record) { return !record.key.starts_with(o.key); });
  return found;
}

// What the files and records that begin with the key given belong to.
std::string one_key(const KvOptions& o, const Found& found) {
  std::string key;
  const auto add = [&](const std::string& next) {
    if (!key.empty() && key != next)
      fail(ErrorKind::kInvalidArgument, "kv: several conversations begin with \"{}\"", o.key);
    key = next;
  };
  for (const StateFile& file : found.files) add(file.name.key);
  for (const StoredRecord& record : found.records) add(record.key);
  if (key.empty())
    fail(ErrorKind::kInvalidArgument, "kv: nothing is kept of conversation \"{}\"", o.key);
  return key;
}

void list(const KvOptions& o) {
  const Found found = find(o);
  for (const StateFile& file : found.files) {
    std::string what;
    try {
      const StateManifest manifest = read_manifest_file(file.path);
      what = fmt::format("{} tokens, {} bytes", manifest.length(), manifest.image_bytes());
    } catch (const Error& error) {
      what = fmt::format("unreadable: {}", error.what());
    }
    write_output(fmt::format("file   {} version {}, engine {}, {}\n", file.name.key,
                             file.name.version.sequence, file.name.engine, what));
  }
  for (const StoredRecord& record : found.records)
    write_output(fmt::format("record {} version {}, owner {}{}, expires in {} s\n", record.key,
                             record.version.sequence, record.owner,
                             record.alive ? "" : " (not alive)", record.expires_seconds));
}

void show(const KvOptions& o) {
  const Found found = find(o);
  write_output(fmt::format("conversation {}\n", one_key(o, found)));
  for (const StateFile& file : found.files) {
    const StateManifest manifest = read_manifest_file(file.path);
    write_output(fmt::format(
        "file {}\n  version {} of epoch {}\n  engine {}\n  {} tokens, {} bytes in {} blocks\n"
        "  {}, {}\n",
        file.path, file.name.version.sequence, file.name.version.epoch,
        to_hex(manifest.fingerprint()), manifest.length(), manifest.image_bytes(),
        manifest.blocks(),
        manifest.recent_bytes() > 0
            ? fmt::format("{} bytes to continue bit for bit", manifest.recent_bytes())
            : "continues by replay",
        manifest.exact() ? "computed with exact prefill" : "computed by replay"));
    for (const StateManifest::Section& section : manifest.sections())
      write_output(fmt::format("  section at {}: {} bytes, {}\n", section.offset, section.bytes,
                               section.row_bytes == 0
                                   ? std::string("recent part")
                                   : fmt::format("rows of {} bytes, {} tokens each",
                                                 section.row_bytes, section.tokens_a_row)));
  }
  if (!found.redis) return;
  const std::string epoch = stored_epoch(*found.redis, o.prefix);
  for (const StoredRecord& record : found.records)
    write_output(
        fmt::format("record\n  version {} of epoch {}{}\n  owner {}{}\n  expires in {} s\n",
                    record.version.sequence, record.version.epoch,
                    record.version.epoch == epoch ? "" : " (void: not the directory's)",
                    record.owner, record.alive ? "" : " (not alive)", record.expires_seconds));
}

void verify(const KvOptions& o) {
  if (o.folder.empty()) fail(ErrorKind::kInvalidArgument, "kv verify: expected --kv-dir");
  int64_t bad = 0;
  const std::vector<StateFile> files = find(o).files;
  for (const StateFile& file : files) {
    std::string verdict = "intact";
    try {
      read_image_file(file.path);
    } catch (const Error& error) {
      verdict = error.what();
      ++bad;
    }
    write_output(fmt::format("{}: {}\n", file.path, verdict));
  }
  write_output(fmt::format("{} files, {} bad\n", files.size(), bad));
  if (bad > 0) throw ExitCode{1};
}

void drop(const KvOptions& o) {
  const Found found = find(o);
  const std::string key = one_key(o, found);
  for (const StateFile& file : found.files) {
    std::error_code error;
    if (!fs::remove(file.path, error))
      fail(ErrorKind::kIo, "{}: cannot be removed ({})", file.path,
           error ? error.message() : "gone already");
    write_output(fmt::format("removed {}\n", file.path));
  }
  for (const StoredRecord& record : found.records)
    if (drop_record(*found.redis, o.prefix, record.key))
      write_output(fmt::format("removed the record of {}\n", key));
}

}  // namespace

void add_kv(CLI::App& app) {
  CLI::App* command = app.add_subcommand("kv", "Look at saved states of conversations");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, auto run, bool takes_key,
                       bool needs_key) {
    auto o = std::make_shared<KvOptions>();
    CLI::App* sub = command->add_subcommand(name, help);
    sub->add_option("--kv-dir", o->folder, "Folder of a server's states");
    sub->add_option("--kv-directory", o->directory, "redis://host:port or unix:/path");
    sub->add_option("--kv-prefix", o->prefix, "Of all keys in Redis (default: peregrine)");
    if (takes_key)
      sub->add_option("key", o->key, "SHA-256 of the conversation, or the digits it begins with")
          ->required(needs_key);
    sub->callback([o, run] { run(*o); });
  };
  add("ls", "List files and records", list, false, false);
  add("show", "What is known of a conversation", show, true, true);
  add("verify", "Hash every byte of files; ends with 1 if one is bad", verify, true, false);
  add("drop", "Remove a conversation's files and record", drop, true, true);
}

}  // namespace peregrine
