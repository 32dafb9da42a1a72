#include "server/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <chrono>

#include "server/json_writer.h"

namespace peregrine {

extern const std::string_view kPageHtml;  // made of page/index.html (cmake/EmbedPage.cmake)

namespace {

// What stands between the only <tag> and its end.
std::string_view content_of(std::string_view html, const std::string& tag) {
  const std::string opening = "<" + tag + ">";
  const size_t begin = html.find(opening) + opening.size();
  return html.substr(begin, html.find("</" + tag + ">") - begin);
}

// 'sha256-...', by which a content security policy allows one inline text.
std::string source_hash(std::string_view text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  unsigned char encoded[4 * ((sizeof digest + 2) / 3) + 1];
  const int length = EVP_EncodeBlock(encoded, digest, sizeof digest);
  return fmt::format("'sha256-{}'", std::string_view(reinterpret_cast<char*>(encoded),
                                                     static_cast<size_t>(length)));
}

template <typename Array>
void write_counts(JsonWriter& w, const char* name, const Array& counts) {
  w.key(name).begin_array();
  for (const int64_t count : counts) w.value(count);
  w.end_array();
}

}  // namespace

HttpResponse page_response() {
  static const std::string kPolicy = fmt::format(
      "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; base-uri 'none'; "
      "form-action 'none'; frame-ancestors 'none'",
      source_hash(content_of(kPageHtml, "script")), source_hash(content_of(kPageHtml, "style")));
  return {.content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}},
          .body = std::string(kPageHtml)};
}

void handle_engine_stats(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const EngineStats s = service.engine.stats();
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  JsonWriter w;
  w.begin_object().member("time_seconds", now.count());
  w.member("model", service.options.model_name).member("version", service.version);
  w.member("max_running", service.engine.options().max_running);
  w.member("running", s.running).member("waiting", s.waiting).member("prefilling", s.prefilling);
  w.member("steps", s.steps).member("prompt_tokens", s.prompt_tokens);
  w.member("cached_tokens", s.cached_tokens).member("output_tokens", s.output_tokens);
  w.member("requests", s.requests).member("finished", s.finished);
  w.member("cancelled", s.cancelled).member("failed", s.failed);
  w.member("preemptions", s.preemptions);
  w.member("verified", s.verified).member("accepted", s.accepted);
  write_counts(w, "verified_at", s.verified_at);
  write_counts(w, "accepted_at", s.accepted_at);
  w.member("pages_total", s.pages_total).member("pages_used", s.pages_used);
  w.member("pages_cached", s.pages_cached);
  w.member("device_busy_seconds", s.device_busy_seconds);
  w.member("device_idle_seconds", s.device_idle_seconds);
  w.member("host_seconds", s.host_seconds).member("last_step_ms", s.last_step_ms).end_object();
  exchange->respond({.headers = {{"Cache-Control", "no-store"}}, .body = w.take()});
}

}  // namespace peregrine
