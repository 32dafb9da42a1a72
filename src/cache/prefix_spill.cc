#include "cache/prefix_spill.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/fail.h"
#include "base/file_descriptor.h"

namespace peregrine {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'P', 'G', 'R', 'N', 'P', 'R', 'F', 'X'};
constexpr uint32_t kVersion = 1;
constexpr const char* kSuffix = ".prefix";
constexpr const char* kTemporarySuffix = ".prefix.part";
constexpr size_t kChecksumBytes = sizeof(uint64_t);

struct Head {
  char magic[8];
  uint32_t version;
  uint32_t exact;
  uint64_t fingerprint;
  int64_t length;  // tokens
  uint64_t recent_bytes;
  uint64_t page_bytes;
  int32_t rows_per_page;
  int32_t sources;
};
static_assert(sizeof(Head) == 56);

uint64_t fnv1a(std::span<const std::byte> bytes, uint64_t hash) {
  for (const std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211u;
  return hash;
}

// `start` is the head's checksum; block 0 is the head itself.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t block, uint64_t start) {
  const uint64_t seed[] = {start, block};
  return fnv1a(bytes, fnv1a(std::as_bytes(std::span(seed)), 14695981039346656037u));
}

size_t head_bytes(int64_t tokens, size_t sources) {
  return sizeof(Head) + sources * sizeof(int64_t) + static_cast<size_t>(tokens) * sizeof(int32_t);
}

}  // namespace

// A file whose head has been read and checked.
struct PrefixSpill::Opened {
  FileDescriptor descriptor;
  uint64_t bytes = 0;
  bool exact = false;
  std::vector<int64_t> pages = {};  // by source
  std::vector<int32_t> tokens = {};
  uint64_t checksum = 0;  // the head's

  uint64_t body() const {
    return head_bytes(static_cast<int64_t>(tokens.size()), pages.size()) + kChecksumBytes;
  }
  // A block behind the head and its checksum.
  std::vector<std::byte> read_block(uint64_t block, uint64_t offset, uint64_t size) const {
    std::vector<std::byte> bytes(size);
    uint64_t stored = 0;
    descriptor.read(bytes, offset);
    descriptor.read(std::as_writable_bytes(std::span(&stored, 1)), offset + size);
    if (stored != peregrine::checksum(bytes, block, checksum))
      fail(ErrorKind::kIo, "is damaged between bytes {} and {}", offset, offset + size);
    return bytes;
  }
};

PrefixSpill::PrefixSpill(const std::string& directory, const SpillShape& shape)
    : directory_(directory), shape_(shape) {
  if (!enabled()) return;
  std::error_code error;
  fs::create_directories(directory_, error);
  if (!error && fs::is_directory(directory_, error)) return;
  spdlog::warn("prefix cache: {} cannot hold files ({}), saved states stay in memory", directory_,
               error ? error.message() : "not a directory");
  ++failures_;
  directory_.clear();
}

// The model's fingerprint leads the name, so that a scan opens no file of another model.
std::string PrefixSpill::name_of(std::span<const int32_t> tokens) const {
  return fmt::format("{:016x}-{:016x}-{}{}", shape_.fingerprint,
                     checksum(std::as_bytes(tokens), 0, shape_.fingerprint), tokens.size(),
                     kSuffix);
}

uint64_t PrefixSpill::file_bytes(int64_t tokens, std::span<const int64_t> pages) const {
  uint64_t bytes =
      head_bytes(tokens, pages.size()) + kChecksumBytes + shape_.recent_bytes + kChecksumBytes;
  for (const int64_t n : pages)
    bytes += static_cast<uint64_t>(n) * (shape_.page_bytes + kChecksumBytes);
  return bytes;
}

void PrefixSpill::give_up(const std::string& path, const char* what) {
  ++failures_;
  spdlog::warn("prefix cache: {} {}; the saved state is dropped", path, what);
  std::error_code ignored;
  fs::remove(path, ignored);
}

void PrefixSpill::remove(const File& file) {
  std::error_code error;
  fs::remove(file.path, error);
  if (error) give_up(file.path, "cannot be removed");
}

// -- writing -------------------------------------------------------------------------------------

void PrefixSpill::write_to(const std::string& path, const Point& point) const {
  const auto length = static_cast<int64_t>(point.tokens.size());
  const Head fields = {.magic = {},
                       .version = kVersion,
                       .exact = point.exact ? 1u : 0u,
                       .fingerprint = shape_.fingerprint,
                       .length = length,
                       .recent_bytes = shape_.recent_bytes,
                       .page_bytes = shape_.page_bytes,
                       .rows_per_page = shape_.rows_per_page,
                       .sources = shape_.sources};
  std::vector<std::byte> head(head_bytes(length, point.pages.size()));
  std::byte* at = head.data();
  const auto append = [&](const void* data, size_t bytes) {
    std::memcpy(at, data, bytes);
    at += bytes;
  };
  append(&fields, sizeof(fields));
  std::memcpy(head.data(), kMagic, sizeof(kMagic));
  append(point.pages.data(), point.pages.size() * sizeof(int64_t));
  append(point.tokens.data(), point.tokens.size_bytes());

  FileDescriptor out(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  uint64_t start = 0;
  uint64_t block = 0;
  const auto write_block = [&](std::span<const std::byte> bytes) {
    const uint64_t sum = checksum(bytes, block, start);
    if (block++ == 0) start = sum;
    out.write(bytes);
    out.write(std::as_bytes(std::span(&sum, 1)));
  };
  write_block(head);
  write_block(point.recent);
  std::vector<std::byte> page(shape_.page_bytes);
  for (size_t source = 0; source < point.pages.size(); ++source) {
    for (int64_t i = 0; i < point.pages[source]; ++i) {
      point.read_page(static_cast<int>(source), i, page.data());
      write_block(page);
    }
  }
  out.close();
}

PrefixSpill::File PrefixSpill::write(const Point& point) {
  const std::string path = directory_ + "/" + name_of(point.tokens);
  const std::string temporary = path + ".part";
  try {
    write_to(temporary, point);
    if (std::rename(temporary.c_str(), path.c_str()) != 0)
      fail(ErrorKind::kIo, "cannot be renamed ({})", system_reason());
  } catch (const Error& error) {
    give_up(temporary, error.what());
    return {};
  }
  return {.path = path,
          .bytes = file_bytes(static_cast<int64_t>(point.tokens.size()), point.pages)};
}

// -- reading -------------------------------------------------------------------------------------

PrefixSpill::Opened PrefixSpill::open(const std::string& path) const {
  Opened file = {.descriptor = FileDescriptor(path, O_RDONLY | O_CLOEXEC)};
  file.bytes = file.descriptor.size();
  Head head;
  file.descriptor.read(std::as_writable_bytes(std::span(&head, 1)), 0);
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0)
    fail(ErrorKind::kIo, "does not start with \"PGRNPRFX\"");
  if (head.version != kVersion)
    fail(ErrorKind::kIo, "has format version {}, expected {}", head.version, kVersion);
  if (head.fingerprint != shape_.fingerprint)
    fail(ErrorKind::kIo, "was made by other weights (fingerprint {:016x}, this model {:016x})",
         head.fingerprint, shape_.fingerprint);
  if (head.recent_bytes != shape_.recent_bytes || head.page_bytes != shape_.page_bytes ||
      head.rows_per_page != shape_.rows_per_page || head.sources != shape_.sources)
    fail(ErrorKind::kIo, "holds states of another shape");
  const auto sources = static_cast<size_t>(shape_.sources);
  if (head.length < 1 || static_cast<uint64_t>(head.length) > file.bytes / sizeof(int32_t) ||
      head_bytes(head.length, sources) > file.bytes)
    fail(ErrorKind::kIo, "has {} bytes, too few for {} tokens", file.bytes, head.length);

  std::vector<std::byte> bytes(head_bytes(head.length, sources));
  uint64_t stored = 0;
  file.descriptor.read(bytes, 0);
  file.descriptor.read(std::as_writable_bytes(std::span(&stored, 1)), bytes.size());
  file.checksum = checksum(bytes, 0, 0);
  if (stored != file.checksum) fail(ErrorKind::kIo, "has a damaged head");
  file.exact = head.exact != 0;
  file.pages.resize(sources);
  file.tokens.resize(static_cast<size_t>(head.length));
  const std::byte* at = bytes.data() + sizeof(head);
  std::memcpy(file.pages.data(), at, sources * sizeof(int64_t));
  std::memcpy(file.tokens.data(), at + sources * sizeof(int64_t),
              file.tokens.size() * sizeof(int32_t));
  for (const int64_t n : file.pages)
    if (n < 0 || static_cast<uint64_t>(n) > file.bytes / shape_.page_bytes)
      fail(ErrorKind::kIo, "has {} bytes, too few for {} pages", file.bytes, n);
  if (file.bytes != file_bytes(head.length, file.pages))
    fail(ErrorKind::kIo, "has {} bytes, expected {}", file.bytes,
         file_bytes(head.length, file.pages));
  return file;
}

std::vector<PrefixSpill::Entry> PrefixSpill::scan() {
  std::vector<std::pair<fs::file_time_type, std::string>> paths;
  std::error_code error;
  const std::string ours = fmt::format("{:016x}-", shape_.fingerprint);
  for (fs::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (!name.starts_with(ours)) continue;
    if (name.ends_with(kTemporarySuffix))
      fs::remove(it->path(), ignored);
    else if (name.ends_with(kSuffix))
      paths.emplace_back(it->last_write_time(ignored), it->path().string());
  }
  if (error) {
    ++failures_;
    spdlog::warn("prefix cache: {} cannot be listed ({})", directory_, error.message());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Entry> entries;
  for (const auto& [time, path] : paths) {
    try {
      Opened file = open(path);
      entries.push_back({.tokens = std::move(file.tokens),
                         .exact = file.exact,
                         .file = {.path = path, .bytes = file.bytes}});
    } catch (const Error& problem) {
      give_up(path, problem.what());
    }
  }
  return entries;
}

std::optional<std::vector<std::byte>> PrefixSpill::read_recent(const File& file,
                                                               std::span<const int32_t> tokens) {
  try {
    const Opened opened = open(file.path);
    if (!std::ranges::equal(opened.tokens, tokens))
      fail(ErrorKind::kIo, "holds other tokens than expected");
    return opened.read_block(1, opened.body(), shape_.recent_bytes);
  } catch (const Error& error) {
    give_up(file.path, error.what());
    return std::nullopt;
  }
}

std::optional<PrefixSpill::Pages> PrefixSpill::read_pages(const File& file,
                                                          std::span<const int32_t> tokens,
                                                          std::span<const int64_t> pages) {
  try {
    const Opened opened = open(file.path);
    if (!std::ranges::equal(opened.tokens, tokens))
      fail(ErrorKind::kIo, "holds other tokens than expected");
    Pages result(opened.pages.size());
    uint64_t first = 2;  // the block behind head and recent part
    uint64_t offset = opened.body() + shape_.recent_bytes + kChecksumBytes;
    const uint64_t stride = shape_.page_bytes + kChecksumBytes;
    for (size_t source = 0; source < opened.pages.size(); ++source) {
      const auto stored = static_cast<uint64_t>(opened.pages[source]);
      const auto wanted = static_cast<uint64_t>(pages[source]);
      if (wanted > stored)
        fail(ErrorKind::kIo, "holds {} pages of source {}, expected {}", stored, source, wanted);
      for (uint64_t i = 0; i < wanted; ++i)
        result[source].push_back(
            opened.read_block(first + i, offset + i * stride, shape_.page_bytes));
      first += stored;
      offset += stored * stride;
    }
    return result;
  } catch (const Error& error) {
    give_up(file.path, error.what());
    return std::nullopt;
  }
}

}  // namespace peregrine
