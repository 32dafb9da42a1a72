#include "server/service.h"

#include <fmt/format.h>

#include <chrono>

#include "engine/model_impl.h"
#include "text/output_parser.h"

namespace peregrine {
namespace {

constexpr size_t kTurnTokens = size_t{16} << 20;  // 64 MB of ids

}  // namespace

Service::Service(Engine& engine, ServerOptions given, const DraftOptions& draft, Sharing* sharing)
    : engine(engine),
      sharing(sharing),
      tokenizer(engine.model().impl().tokenizer),
      options(std::move(given)),
      draft(draft),
      version(PEREGRINE_VERSION),
      fingerprint(fmt::format("peregrine-{}-{:08x}", PEREGRINE_VERSION,
                              engine.model().impl().fingerprint & 0xffffffff)),
      started(unix_time()),
      end_of_turn_ids(tokenizer.end_of_turn_ids()),
      sorted_tokens(std::make_shared<SortedTokens>(tokenizer, engine.model().vocab_size())),
      turns(kTurnTokens),
      metrics(engine) {}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string random_id(const std::string& prefix) {
  return prefix + random_call_id().substr(std::string("call_").size());
}

}  // namespace peregrine
