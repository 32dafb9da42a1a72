#include "server/models.h"

#include <fmt/chrono.h>

#include "server/http_router.h"
#include "server/json_writer.h"

namespace peregrine {
namespace {

void write_model(JsonWriter& w, const Service& service, bool anthropic) {
  const std::string& name = service.options.model_name;
  w.begin_object();
  if (anthropic) {
    w.member("type", "model").member("id", name).member("display_name", name);
    w.member("created_at",
             fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time_t{service.started})));
  } else {
    w.member("id", name).member("object", "model").member("created", service.started);
    w.member("owned_by", "peregrine").member("max_model_len", service.context_tokens());
  }
  w.end_object();
}

}  // namespace

void handle_models(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const bool anthropic = request.header("anthropic-version") != nullptr;
  const std::string path = HttpRouter::plain_path(request.path);
  const std::string& name = service.options.model_name;
  JsonWriter w;
  if (path != "/models") {
    const std::string wanted = path.substr(std::string("/models/").size());
    if (wanted != name)
      throw ApiError(404,
                     fmt::format("the model \"{}\" does not exist, this server has \"{}\"",
                                 wanted.substr(0, 200), name),
                     "model", "model_not_found");
    write_model(w, service, anthropic);
  } else if (anthropic) {
    w.begin_object().key("data").begin_array();
    write_model(w, service, true);
    w.end_array().member("has_more", false).member("first_id", name).member("last_id", name);
    w.end_object();
  } else {
    w.begin_object().member("object", "list").key("data").begin_array();
    write_model(w, service, false);
    w.end_array().end_object();
  }
  exchange->respond({.body = w.take()});
}

}  // namespace peregrine
