// Exact points of the prefix cache as files: one a point, in a directory of one server's own.
//
// A file is complete or absent (written under a temporary name, then renamed), self-describing and
// checked before use. Whatever goes wrong with it (no space, no permission, flipped bits, a cut
// end) costs the point and one warning, never a request; failures() counts. Files are not synced:
// what a power cut damages, the checksums find.
//
// Layout, little endian; a checksum is FNV-1a 64 over the bytes of its block, started from the
// block's number and, behind the head, from the head's checksum, so that no block passes for
// another:
//   head    Head; pages of each source (int64); token ids (int32); checksum
//   recent  StateStore::save_recent; checksum
//   pages   StateStore::save_page, source by source, each with its checksum
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace peregrine {

// What all files of a server have in common.
struct SpillShape {
  uint64_t fingerprint = 0;  // of the model
  uint64_t recent_bytes = 0;
  uint64_t page_bytes = 0;
  int32_t rows_per_page = 0;
  int32_t sources = 0;
};

class PrefixSpill {
 public:
  struct File {
    std::string path;  // empty: none
    uint64_t bytes = 0;
  };
  struct Entry {
    std::vector<int32_t> tokens;
    bool exact = false;  // PrefixRecord::exact
    File file;
  };

  // Creates the directory where it is missing. An empty name, or a directory that cannot be made,
  // switches spilling off.
  PrefixSpill(const std::string& directory, const SpillShape& shape);

  bool enabled() const { return !directory_.empty(); }

  // The points found in the directory, oldest first; their heads are checked. Files of other models
  // stay untouched, leftovers and broken files are removed.
  std::vector<Entry> scan();

  uint64_t file_bytes(int64_t tokens, std::span<const int64_t> pages) const;

  struct Point {
    std::span<const int32_t> tokens;
    bool exact = false;
    std::span<const std::byte> recent;
    std::vector<int64_t> pages;  // by source
    // Copies one page to page_bytes of memory.
    std::function<void(int source, int64_t index, std::byte* out)> read_page;
  };
  // File::path is empty when the point could not be written.
  File write(const Point& point);

  // Reads from a point of these tokens; empty, and the file removed, when it cannot be trusted.
  std::optional<std::vector<std::byte>> read_recent(const File& file,
                                                    std::span<const int32_t> tokens);
  // The first `pages` pages of each source.
  using Pages = std::vector<std::vector<std::vector<std::byte>>>;
  std::optional<Pages> read_pages(const File& file, std::span<const int32_t> tokens,
                                  std::span<const int64_t> pages);

  void remove(const File& file);

  int64_t failures() const { return failures_; }

 private:
  struct Opened;
  Opened open(const std::string& path) const;
  std::string name_of(std::span<const int32_t> tokens) const;
  void write_to(const std::string& path, const Point& point) const;
  void give_up(const std::string& path, const char* what);

  std::string directory_;
  const SpillShape shape_;
  int64_t failures_ = 0;
};

}  // namespace peregrine
