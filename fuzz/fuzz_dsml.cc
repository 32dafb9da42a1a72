// Any bytes as the model's output: the parse does not depend on how they are cut into pieces, and
// the arguments of every finished call are one JSON object. The first byte holds the parser's
// options, the second how the output is cut.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_text.h"
#include "text/output_parser.h"

namespace {

using peregrine::OutputEvent;
using peregrine::OutputParser;

// The events of an output, neighbouring texts joined.
class Joined {
 public:
  void add(const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      const bool is_text =
          event.kind != OutputEvent::Kind::kCallBegin && event.kind != OutputEvent::Kind::kCallEnd;
      if (is_text && !all_.empty() && all_.back().kind == event.kind &&
          all_.back().call == event.call) {
        all_.back().text += event.text;
      } else {
        all_.push_back(event);
      }
    }
  }
  bool operator==(const Joined& other) const {
    if (all_.size() != other.all_.size()) return false;
    for (size_t i = 0; i < all_.size(); ++i) {
      const OutputEvent &a = all_[i], &b = other.all_[i];
      if (a.kind != b.kind || a.text != b.text || a.call != b.call || a.id != b.id) return false;
    }
    return true;
  }
  void check_arguments() const {
    for (size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].kind != OutputEvent::Kind::kCallEnd) continue;
      if (i == 0 || all_[i - 1].kind != OutputEvent::Kind::kArguments) std::abort();
      const auto parsed = peregrine::parse_json(all_[i - 1].text);
      if (!parsed.value || !parsed.value->is_object()) std::abort();
    }
  }

 private:
  std::vector<OutputEvent> all_;
};

Joined parse(uint8_t options, std::string_view output, size_t piece_bytes) {
  int next_id = 0;
  OutputParser parser(
      {options & 1 ? peregrine::OutputStart::kReasoning : peregrine::OutputStart::kContent,
       (options & 2) != 0, [&] { return std::to_string(next_id++); }});
  Joined all;
  for (size_t at = 0; at < output.size(); at += piece_bytes) {
    all.add(parser.push(output.substr(at, piece_bytes)));
  }
  all.add(parser.finish(options & 4 ? peregrine::StopCause::kLength
                                    : peregrine::StopCause::kEndOfTurn));
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view output(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Joined whole = parse(data[0], output, output.size() + 1);
  whole.check_arguments();
  if (!(parse(data[0], output, 1) == whole)) std::abort();
  if (!(parse(data[0], output, 1 + data[1] % 32) == whole)) std::abort();
  return 0;
}
