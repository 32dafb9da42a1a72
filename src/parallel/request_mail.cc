#include "parallel/request_mail.h"

#include <algorithm>

#include "base/fail.h"

namespace peregrine {
namespace {

struct RecordHeader {
  uint64_t id = 0;
  uint64_t body_bytes = 0;
  uint64_t kind = 0;
};

class Writer {
 public:
  template <typename T>
  Writer& value(const T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&v, sizeof(v));
    return *this;
  }
  template <typename Range>
  Writer& list(const Range& range) {
    value(static_cast<uint64_t>(range.size()));
    for (const auto& v : range) value(v);
    return *this;
  }
  Bytes take() { return std::move(bytes_); }

 private:
  void append(const void* data, size_t size) {
    const auto* p = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), p, p + size);
  }
  Bytes bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  void value(T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (bytes_.size() < sizeof(v))
      fail(ErrorKind::kInternal, "mail between ranks ends {} bytes early",
           sizeof(v) - bytes_.size());
    std::memcpy(static_cast<void*>(&v), bytes_.data(), sizeof(v));
    bytes_ = bytes_.subspan(sizeof(v));
  }
  template <typename List>
  void list(List& values) {
    uint64_t size = 0;
    value(size);
    if (size > bytes_.size() / sizeof(typename List::value_type))
      fail(ErrorKind::kInternal, "mail between ranks has a list of {} in {} bytes", size,
           bytes_.size());
    values.resize(size);
    for (auto& v : values) value(v);
  }

 private:
  std::span<const std::byte> bytes_;
};

// std::pair is not trivially copyable.
struct Bias {
  int32_t token = 0;
  float bias = 0;
};

}  // namespace

// -- streams
// --------------------------------------------------------------------------------------------

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

// -- bodies
// ---------------------------------------------------------------------------------------------

Bytes write_request(const Request& r) {
  const SamplingParams& s = r.sampling;
  std::vector<Bias> biases;
  for (const auto& [token, bias] : s.logit_bias) biases.push_back({token, bias});
  Writer w;
  w.list(r.prompt).value(r.max_tokens).list(r.stop_ids).value(r.draft).value(r.priority);
  w.value(r.deadline_seconds).value(s.temperature).value(s.top_p).value(s.top_k).value(s.min_p);
  w.value(s.repetition_penalty).value(s.presence_penalty).value(s.frequency_penalty);
  w.list(biases).value(s.seed.has_value()).value(s.seed.value_or(0));
  w.value(s.logprobs.has_value()).value(s.logprobs.value_or(0));
  return w.take();
}

Request read_request(std::span<const std::byte> bytes) {
  Request r;
  SamplingParams& s = r.sampling;
  std::vector<Bias> biases;
  bool has_seed = false, has_logprobs = false;
  uint64_t seed = 0;
  int logprobs = 0;
  Reader in(bytes);
  in.list(r.prompt), in.value(r.max_tokens), in.list(r.stop_ids);
  in.value(r.draft), in.value(r.priority), in.value(r.deadline_seconds);
  in.value(s.temperature), in.value(s.top_p), in.value(s.top_k), in.value(s.min_p);
  in.value(s.repetition_penalty), in.value(s.presence_penalty), in.value(s.frequency_penalty);
  in.list(biases), in.value(has_seed), in.value(seed);
  in.value(has_logprobs), in.value(logprobs);
  for (const Bias& b : biases) s.logit_bias.emplace_back(b.token, b.bias);
  if (has_seed) s.seed = seed;
  if (has_logprobs) s.logprobs = logprobs;
  return r;
}

Bytes write_event(const Event& event) {
  Writer w;
  w.list(event.tokens).value(static_cast<uint64_t>(event.logprobs.size()));
  for (const TokenLogprobs& l : event.logprobs) w.value(l.chosen).list(l.top);
  w.value(event.finished).value(event.reason).list(event.error);
  w.value(event.usage ? *event.usage : Usage{});
  return w.take();
}

MailEvent read_event(std::span<const std::byte> bytes) {
  MailEvent event;
  Reader in(bytes);
  uint64_t logprobs = 0;
  in.list(event.tokens), in.value(logprobs);
  for (uint64_t i = 0; i < logprobs; ++i) {
    TokenLogprobs& l = event.logprobs.emplace_back();
    in.value(l.chosen), in.list(l.top);
  }
  in.value(event.finished), in.value(event.reason), in.list(event.error), in.value(event.usage);
  return event;
}

Bytes write_stats(const EngineStats& stats) { return Writer().value(stats).take(); }

EngineStats read_stats(std::span<const std::byte> bytes) {
  EngineStats stats;
  Reader(bytes).value(stats);
  return stats;
}

}  // namespace peregrine
