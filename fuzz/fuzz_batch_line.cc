// Any bytes as a line of a batch file and as a line of its results: a request that is taken has a
// body that the handlers can parse, and every result names its line and request again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/batch_line.h"
#include "text/json_text.h"

namespace {

void check_result(std::string result, const peregrine::BatchLine& line, bool failed) {
  if (result.find('\n') != result.size() - 1) std::abort();
  result.pop_back();
  if (!peregrine::parse_json(result).value) std::abort();
  const auto head = peregrine::parse_batch_result(result);
  if (!head || head->line != 42 || head->custom_id != line.custom_id || head->failed != failed)
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  peregrine::parse_batch_result(text);
  const peregrine::BatchLine line = peregrine::parse_batch_line(text);
  if (!line.problem.empty()) {
    check_result(peregrine::batch_refusal(42, line), line, true);
    return 0;
  }
  const auto body = peregrine::parse_json(line.body);
  if (!line.custom_id || !body.value || !body.value->is_object()) std::abort();
  check_result(peregrine::batch_result(42, line, {200, "req_x", line.body}), line, false);
  check_result(peregrine::batch_result(42, line, {500, "req_x", "{}"}), line, true);
  return 0;
}
