// Any bytes as a connection's input: a request that is complete is the same however its bytes are
// cut. The first byte is the length of the pieces.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/http_parser.h"

namespace {

using peregrine::HttpParser;
using peregrine::HttpRequest;

struct Outcome {
  HttpParser::State state;
  HttpRequest request;
};

Outcome parse(std::string_view bytes, size_t piece) {
  peregrine::HttpLimits limits;
  limits.header_bytes = 4096;
  limits.body_bytes = 4096;
  HttpParser parser(limits);
  std::string inbox;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    inbox += bytes.substr(at, piece);
    const size_t taken = parser.feed(inbox);
    if (taken > inbox.size()) std::abort();
    inbox.erase(0, taken);
    if (parser.state() == HttpParser::State::kComplete) break;
    if (parser.state() == HttpParser::State::kFailed) break;
  }
  Outcome outcome{parser.state(), {}};
  if (outcome.state == HttpParser::State::kComplete) outcome.request = parser.take_request();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = parse(bytes, bytes.size());
  const Outcome pieces = parse(bytes, 1 + data[0]);
  if (whole.state != HttpParser::State::kComplete || pieces.state != whole.state) return 0;
  if (whole.request.path != pieces.request.path || whole.request.body != pieces.request.body ||
      whole.request.headers != pieces.request.headers)
    std::abort();
  return 0;
}
