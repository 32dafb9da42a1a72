#include "input.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/fail.h"

namespace peregrine {
namespace {

std::string read_all(std::FILE* file, const std::string& name) {
  std::string text;
  char piece[1 << 16];
  while (const size_t got = std::fread(piece, 1, sizeof(piece), file)) text.append(piece, got);
  if (std::ferror(file)) fail(ErrorKind::kIo, "{}: cannot be read: {}", name, std::strerror(errno));
  return text;
}

}  // namespace

std::string read_input(const std::string& path, bool trim) {
  std::string text;
  if (path.empty() || path == "-") {
    if (path.empty() && isatty(STDIN_FILENO))
      fail(ErrorKind::kInvalidArgument,
           "no prompt: expected one as an argument, with --file or on standard input");
    text = read_all(stdin, "standard input");
  } else {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                               std::fclose);
    if (!file) fail(ErrorKind::kIo, "{}: cannot be opened: {}", path, std::strerror(errno));
    text = read_all(file.get(), path);
  }
  if (trim && text.ends_with('\n')) text.pop_back();
  if (trim && text.ends_with('\r')) text.pop_back();
  return text;
}

}  // namespace peregrine
