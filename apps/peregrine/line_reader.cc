#include "line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <filesystem>

#include "interrupt.h"

namespace peregrine {
namespace {

constexpr int kHistoryLines = 1000;

// One character for libedit. Its own reader repeats a read that a signal has ended, which would
// swallow Ctrl-C.
int read_character(EditLine*, wchar_t* out) {
  std::mbstate_t state = {};
  while (true) {
    char byte;
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got == 0) return 0;
    if (got < 0) {
      if (errno == EINTR && !InterruptGuard::requested()) continue;
      return -1;
    }
    const size_t used = std::mbrtowc(out, &byte, 1, &state);
    if (used == static_cast<size_t>(-2)) continue;  // a part of a character
    if (used == static_cast<size_t>(-1)) *out = L'\xFFFD';
    return 1;
  }
}

}  // namespace

struct LineReader::Editor {
  EditLine* line = nullptr;
  History* history = nullptr;
  HistEvent event;
  std::string path, prompt;

  static char* show_prompt(EditLine* line) {
    Editor* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }

  explicit Editor(const std::string& history_path) : path(history_path) {
    std::setlocale(LC_CTYPE, "C.UTF-8");  // characters, not bytes; nothing else follows the locale
    line = el_init("peregrine", stdin, stdout, stderr);
    history = history_init();
    if (line == nullptr || history == nullptr) throw std::bad_alloc();
    ::history(history, &event, H_SETSIZE, kHistoryLines);
    ::history(history, &event, H_SETUNIQUE, 1);
    if (!path.empty()) ::history(history, &event, H_LOAD, path.c_str());
    el_set(line, EL_CLIENTDATA, this);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_SIGNAL, 0);
    el_set(line, EL_PROMPT, show_prompt);
    el_set(line, EL_GETCFN, read_character);
    el_set(line, EL_HIST, ::history, history);
    el_source(line, nullptr);  // the user's ~/.editrc
  }
  ~Editor() {
    if (history != nullptr) history_end(history);
    if (line != nullptr) el_end(line);
  }

  void remember(const std::string& text) {
    ::history(history, &event, H_ENTER, text.c_str());
    if (!path.empty()) ::history(history, &event, H_SAVE, path.c_str());
  }
};

LineReader::LineReader(const std::string& history_path) {
  if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
    editor_ = std::make_unique<Editor>(history_path);
}
LineReader::~LineReader() = default;

LineStatus LineReader::read(const std::string& prompt, std::string& line) {
  InterruptGuard::clear();
  if (!editor_) return read_plain(line);
  editor_->prompt = prompt;
  int length = 0;
  const char* text = el_gets(editor_->line, &length);
  if (InterruptGuard::requested()) {
    el_reset(editor_->line);
    return LineStatus::kInterrupted;
  }
  if (text == nullptr || length <= 0) return LineStatus::kEnd;
  line.assign(text, static_cast<size_t>(length));
  if (line.ends_with('\n')) line.pop_back();
  if (line.find_first_not_of(" \t") != line.npos) editor_->remember(line);
  return LineStatus::kLine;
}

LineStatus LineReader::read_plain(std::string& line) {
  line.clear();
  char byte;
  while (true) {
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno == EINTR) return LineStatus::kInterrupted;
    if (got <= 0) return line.empty() ? LineStatus::kEnd : LineStatus::kLine;
    if (byte == '\n') return LineStatus::kLine;
    line += byte;
  }
}

std::string default_history_path() {
  namespace fs = std::filesystem;
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (state != nullptr && *state == '/') {
    folder = state;
  } else if (home != nullptr && *home == '/') {
    folder = fs::path(home) / ".local" / "state";
  } else {
    return {};
  }
  folder /= "peregrine";
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? std::string() : (folder / "history").string();
}

}  // namespace peregrine
