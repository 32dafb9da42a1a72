#include "server/batch_parts.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/fail.h"
#include "server/batch_line.h"

namespace peregrine {
namespace {

namespace fs = std::filesystem;

// The results of a part, one after the other.
class PartReader {
 public:
  explicit PartReader(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    if (!file_) fail(ErrorKind::kIo, "{}: cannot be read: {}", path, std::strerror(errno));
    next();
  }
  bool at_end() const { return !line_; }
  int64_t line() const { return *line_; }  // of the input
  const std::string& text() const { return text_; }

  void next() {
    line_.reset();
    if (!std::getline(file_, text_)) return;
    const auto head = parse_batch_result(text_);
    if (!head) fail(ErrorKind::kInvalidArgument, "{}: holds a line that is no batch result", path_);
    line_ = head->line;
  }

 private:
  const std::string path_;
  std::ifstream file_;
  std::string text_;
  std::optional<int64_t> line_;
};

}  // namespace

std::string batch_part(const std::string& output, int part) {
  return fmt::format("{}.part{}", output, part);
}

void prepare_batch_parts(const std::string& input, const std::string& output, int parts,
                         bool overwrite) {
  if (input == "-" || output == "-")
    fail(ErrorKind::kInvalidArgument,
         "a batch on several ranks reads and writes files, but \"-\" was given");
  std::error_code none;
  if (overwrite) {
    fs::remove(output, none);
    for (int part = 0; part < parts; ++part) fs::remove(batch_part(output, part), none);
    return;
  }
  if (fs::exists(output, none) && fs::file_size(output, none) > 0)
    fail(ErrorKind::kInvalidArgument,
         "{}: holds results already; a batch on several ranks writes a new file, --overwrite "
         "replaces this one",
         output);
}

void merge_batch_parts(const std::string& output, int parts, bool input_order) {
  std::vector<PartReader> readers;
  readers.reserve(static_cast<size_t>(parts));
  for (int part = 0; part < parts; ++part) readers.emplace_back(batch_part(output, part));
  const std::string unfinished = output + ".merging";
  {
    std::ofstream merged(unfinished, std::ios::binary | std::ios::trunc);
    while (true) {
      PartReader* first = nullptr;
      for (PartReader& reader : readers)
        if (!reader.at_end() && (!first || (input_order && reader.line() < first->line())))
          first = &reader;
      if (!first) break;
      merged << first->text() << '\n';
      first->next();
    }
    merged.flush();
    if (!merged)
      fail(ErrorKind::kIo, "{}: cannot be written: {}", unfinished, std::strerror(errno));
  }
  std::error_code error;
  fs::rename(unfinished, output, error);
  if (error) fail(ErrorKind::kIo, "{}: cannot be written: {}", output, error.message());
  for (int part = 0; part < parts; ++part) fs::remove(batch_part(output, part), error);
}

}  // namespace peregrine
