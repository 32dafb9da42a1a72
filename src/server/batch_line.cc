#include "server/batch_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "server/json_writer.h"
#include "text/json_text.h"
#include "text/unicode.h"

namespace peregrine {
namespace {

constexpr std::string_view kIdHead = "{\"id\":\"batch_req_";
constexpr std::string_view kCustomId = "\",\"custom_id\":";
constexpr std::string_view kGoodResponse = ",\"response\":{\"status_code\":200,";
constexpr const char* kUrls[] = {"/v1/chat/completions", "/v1/completions"};

BatchLine& refuse(BatchLine& line, const char* code, std::string problem) {
  line.code = code;
  line.problem = std::move(problem);
  return line;
}

std::string found(const JsonValue* value) {
  if (value == nullptr) return "missing";
  if (value->string()) return json_quote(value->string()->substr(0, 60));
  return value->kind_name();
}

int64_t wanted_tokens(const JsonValue& body) {
  for (const char* name : {"max_completion_tokens", "max_tokens"}) {
    const JsonValue* value = body.find_set(name);
    if (value == nullptr) continue;
    return std::max<int64_t>(0, value->as_int64().value_or(0));
  }
  return 0;
}

JsonWriter begin_result(int64_t line, const BatchLine& request) {
  JsonWriter w;
  w.begin_object().member("id", fmt::format("batch_req_{}", line)).key("custom_id");
  request.custom_id ? w.value(*request.custom_id) : w.null();
  return w;
}

bool strip(std::string_view& text, std::string_view head) {
  if (!text.starts_with(head)) return false;
  text.remove_prefix(head.size());
  return true;
}

// The JSON string at the start of `text`, which moves behind it.
std::optional<std::string> take_string(std::string_view& text) {
  size_t end = 1;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  if (!text.starts_with('"') || end >= text.size()) return std::nullopt;
  const JsonParse parsed = parse_json(text.substr(0, end + 1));
  if (!parsed.value || !parsed.value->string()) return std::nullopt;
  text.remove_prefix(end + 1);
  return *parsed.value->string();
}

// The conversation first, so that requests that begin alike have bodies that begin alike.
std::string body_text(const JsonValue& body) {
  JsonValue::Object members = *body.object();
  std::stable_partition(members.begin(), members.end(), [](const JsonMember& m) {
    return m.key == "messages" || m.key == "prompt";
  });
  return JsonValue(std::move(members)).dump();
}

}  // namespace

BatchLine parse_batch_line(std::string_view text) {
  BatchLine line;
  // Parsing would repair it, and two different custom_ids could become one.
  if (!is_valid_utf8(text))
    return refuse(line, "invalid_json_line", "the line is not valid UTF-8, expected JSON in UTF-8");
  const JsonParse parsed = parse_json(text);
  if (!parsed.value)
    return refuse(line, "invalid_json_line", "the line is no JSON document: " + parsed.problem);
  if (!parsed.value->is_object())
    return refuse(line, "invalid_json_line",
                  fmt::format("the line is {}, expected an object", parsed.value->kind_name()));
  const JsonValue* id = parsed.value->find("custom_id");
  if (id == nullptr || !id->string() || id->string()->empty())
    return refuse(line, "invalid_custom_id",
                  fmt::format("custom_id is {}, expected a string that is not empty", found(id)));
  line.custom_id = *id->string();
  const JsonValue* method = parsed.value->find("method");
  if (method == nullptr || !method->string() || *method->string() != "POST")
    return refuse(line, "invalid_method",
                  fmt::format("method is {}, expected \"POST\"", found(method)));
  const JsonValue* url = parsed.value->find("url");
  if (url == nullptr || !url->string() ||
      std::find(std::begin(kUrls), std::end(kUrls), *url->string()) == std::end(kUrls))
    return refuse(
        line, "invalid_url",
        fmt::format("url is {}, expected \"{}\" or \"{}\"", found(url), kUrls[0], kUrls[1]));
  const JsonValue* body = parsed.value->find("body");
  if (body == nullptr || !body->is_object())
    return refuse(line, "invalid_body", fmt::format("body is {}, expected an object", found(body)));
  const JsonValue* stream = body->find_set("stream");
  if (stream != nullptr && stream->boolean() && *stream->boolean())
    return refuse(line, "invalid_body", "body.stream is true, expected false in a batch");
  line.url = *url->string();
  line.body = body_text(*body);
  line.wanted_tokens = wanted_tokens(*body);
  return line;
}

std::string batch_result(int64_t line, const BatchLine& request, const BatchResponse& response) {
  JsonWriter w = begin_result(line, request);
  w.key("response").begin_object().member("status_code", response.status);
  w.member("request_id", response.request_id).key("body").raw(response.body).end_object();
  w.key("error").null().end_object();
  return w.take() + "\n";
}

std::string batch_refusal(int64_t line, const BatchLine& refused) {
  JsonWriter w = begin_result(line, refused);
  w.key("response").null().key("error").begin_object().member("code", refused.code);
  w.member("message", refused.problem).end_object().end_object();
  return w.take() + "\n";
}

std::optional<BatchResultHead> parse_batch_result(std::string_view text) {
  BatchResultHead head;
  if (!text.ends_with('}') || !strip(text, kIdHead)) return std::nullopt;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), head.line);
  if (error != std::errc() || head.line < 1) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(at - text.data()));
  if (!strip(text, kCustomId)) return std::nullopt;
  if (!strip(text, "null")) {
    head.custom_id = take_string(text);
    if (!head.custom_id) return std::nullopt;
  }
  if (!text.starts_with(",\"response\":")) return std::nullopt;
  head.failed = !text.starts_with(kGoodResponse);
  return head;
}

}  // namespace peregrine
