// One sequence and its state.
//
// The caller gives the whole token prefix it wants and asks to synchronise; what is kept, extended,
// taken back or computed again is the session's business. Nothing above knows about rings or pages.
//
//   auto model = peregrine::Model::load("models/tiny");
//   peregrine::Session session(model);
//   session.sync(model->encode(prompt));
//   while (...) session.step(best(session.logits()));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "peregrine/model.h"

namespace peregrine {

// What a prompt's inner tokens run through (docs/architecture.md, "Prefill").
enum class PrefillMode {
  kExact,   // all layers for all tokens
  kReplay,  // decoder layers for the last window of the prompt only: about half the work
};

struct SessionOptions {
  int context_tokens = 0;  // 0: the model's longest
  int chunk_tokens = 0;    // rows of one prefill step; 0: as many as 40 MB of activations allow
  PrefillMode prefill = PrefillMode::kExact;
  int draft_rows = 0;         // longest draft block; 0: the drafter is not kept up
  int rollback_tokens = 128;  // positions that truncate() can take back
};

struct SyncResult {
  int64_t kept = 0;      // tokens whose state was already there
  int64_t computed = 0;  // tokens that ran
  bool complete =
      true;  // false when `keep_going` stopped it; the state is then the computed prefix
};

class Session {
 public:
  // Throws Error(kInvalidArgument) for options out of range, Error(kOutOfMemory).
  Session(std::shared_ptr<const Model> model, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;

  const std::vector<int32_t>& tokens() const;
  int64_t length() const;

  // Makes the state equal to `prefix` (not empty). `keep_going(done, total)` is asked after every
  // chunk. Throws Error(kInvalidArgument) for an empty prefix, ids outside the vocabulary, or more
  // tokens than the context holds; the state is then unchanged.
  SyncResult sync(std::span<const int32_t> prefix,
                  const std::function<bool(int64_t done, int64_t total)>& keep_going = {});

  // Logits of the last position [vocab]; empty before the first token and after truncate().
  std::span<const float> logits() const;

  // Appends one token; returns its logits [vocab].
  std::span<const float> step(int32_t token);

  // Appends several tokens as one step; returns the logits of each [tokens, vocab].
  std::span<const float> append(std::span<const int32_t> tokens);

  // Takes positions back. `length` must be at least rollback_floor().
  void truncate(int64_t length);
  int64_t rollback_floor() const;

  // The complete state as bytes, and back: the sequence continues bit for bit. restore() throws
  // Error(kInvalidArgument) for bytes that are no snapshot of this model; the state is unchanged.
  std::vector<std::byte> snapshot() const;
  void restore(std::span<const std::byte> bytes);

  uint64_t kv_bytes() const;       // packed KV in use
  uint64_t scratch_bytes() const;  // activation buffers

  struct Impl;  // src/engine/session_impl.h
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace peregrine
