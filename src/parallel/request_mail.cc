#include "parallel/request_mail.h"

#include <algorithm>

#include "parallel/rank_bytes.h"

namespace peregrine {
namespace {

struct RecordHeader {
  uint64_t id = 0;
  uint64_t body_bytes = 0;
  uint64_t kind = 0;
};

constexpr const char* kWhat = "mail between ranks";

// std::pair is not trivially copyable.
struct Bias {
  int32_t token = 0;
  float bias = 0;
};

}  // namespace

// -- streams -------------------------------------------------------------------------------------

void MailStream::put(const MailRecord& record) {
  const RecordHeader header{.id = record.id,
                            .body_bytes = record.body.size(),
                            .kind = static_cast<uint64_t>(record.kind)};
  const auto* p = reinterpret_cast<const std::byte*>(&header);
  out_.insert(out_.end(), p, p + sizeof(header));
  out_.insert(out_.end(), record.body.begin(), record.body.end());
}

void MailStream::pack(Bytes& message) {
  const size_t bytes = std::min(kMostMailBytes, out_.size() - out_begin_);
  const auto begin = out_.begin() + static_cast<ptrdiff_t>(out_begin_);
  message.insert(message.end(), begin, begin + static_cast<ptrdiff_t>(bytes));
  out_begin_ += bytes;
  if (out_begin_ < out_.size()) return;
  out_.clear();
  out_begin_ = 0;
}

void MailStream::unpack(std::span<const std::byte> bytes) {
  in_.insert(in_.end(), bytes.begin(), bytes.end());
}

std::optional<MailRecord> MailStream::next() {
  RecordHeader header;
  const std::span<const std::byte> here = std::span(in_).subspan(in_begin_);
  if (here.size() >= sizeof(header)) {
    std::memcpy(&header, here.data(), sizeof(header));
    if (here.size() - sizeof(header) >= header.body_bytes) {
      const auto body = here.subspan(sizeof(header), header.body_bytes);
      in_begin_ += sizeof(header) + body.size();
      return MailRecord{.kind = static_cast<MailKind>(header.kind),
                        .id = header.id,
                        .body = {body.begin(), body.end()}};
    }
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(in_begin_));
  in_begin_ = 0;
  return std::nullopt;
}

// -- bodies --------------------------------------------------------------------------------------

Bytes write_request(const Request& r) {
  const SamplingParams& s = r.sampling;
  std::vector<Bias> biases;
  for (const auto& [token, bias] : s.logit_bias) biases.push_back({token, bias});
  BytesWriter w;
  w.put_list(r.prompt).put(r.max_tokens).put_list(r.stop_ids).put(r.draft).put(r.priority);
  w.put(r.deadline_seconds).put(s.temperature).put(s.top_p).put(s.top_k).put(s.min_p);
  w.put(s.repetition_penalty).put(s.presence_penalty).put(s.frequency_penalty);
  w.put_list(biases).put(s.seed.has_value()).put(s.seed.value_or(0));
  w.put(s.logprobs.has_value()).put(s.logprobs.value_or(0));
  return w.take();
}

Request read_request(std::span<const std::byte> bytes) {
  Request r;
  SamplingParams& s = r.sampling;
  std::vector<Bias> biases;
  bool has_seed = false, has_logprobs = false;
  uint64_t seed = 0;
  int logprobs = 0;
  BytesReader in(bytes, kWhat);
  in.read_list(r.prompt), in.read(r.max_tokens), in.read_list(r.stop_ids);
  in.read(r.draft), in.read(r.priority), in.read(r.deadline_seconds);
  in.read(s.temperature), in.read(s.top_p), in.read(s.top_k), in.read(s.min_p);
  in.read(s.repetition_penalty), in.read(s.presence_penalty), in.read(s.frequency_penalty);
  in.read_list(biases), in.read(has_seed), in.read(seed);
  in.read(has_logprobs), in.read(logprobs);
  for (const Bias& b : biases) s.logit_bias.emplace_back(b.token, b.bias);
  if (has_seed) s.seed = seed;
  if (has_logprobs) s.logprobs = logprobs;
  return r;
}

Bytes write_event(const Event& event) {
  BytesWriter w;
  w.put_list(event.tokens).put(static_cast<uint64_t>(event.logprobs.size()));
  for (const TokenLogprobs& l : event.logprobs) w.put(l.chosen).put_list(l.top);
  w.put(event.finished).put(event.reason).put_list(event.error);
  w.put(event.usage ? *event.usage : Usage{});
  return w.take();
}

MailEvent read_event(std::span<const std::byte> bytes) {
  MailEvent event;
  BytesReader in(bytes, kWhat);
  uint64_t logprobs = 0;
  in.read_list(event.tokens), in.read(logprobs);
  for (uint64_t i = 0; i < logprobs; ++i) {
    TokenLogprobs& l = event.logprobs.emplace_back();
    in.read(l.chosen), in.read_list(l.top);
  }
  in.read(event.finished), in.read(event.reason), in.read_list(event.error), in.read(event.usage);
  return event;
}

Bytes write_stats(const EngineStats& stats) { return BytesWriter().put(stats).take(); }

EngineStats read_stats(std::span<const std::byte> bytes) {
  EngineStats stats;
  BytesReader(bytes, kWhat).read(stats);
  return stats;
}

}  // namespace peregrine
