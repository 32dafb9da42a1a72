#include "engine/oracle_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace peregrine::test {
namespace {

constexpr int kEncoderRing = 0, kDecoderRing = 2;

void write_tag(void* at, uint64_t tag) { std::memcpy(at, &tag, sizeof(tag)); }
uint64_t read_tag(const void* at) {
  uint64_t tag;
  std::memcpy(&tag, at, sizeof(tag));
  return tag;
}
uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t extend_hash(uint64_t hash, int32_t token) {
  return mix(hash * 31 + static_cast<uint64_t>(token) + 1);
}

uint64_t hash_of(const std::vector<int32_t>& tokens, int64_t length) {
  uint64_t hash = 17;
  for (int64_t i = 0; i < length; ++i) hash = extend_hash(hash, tokens[static_cast<size_t>(i)]);
  return hash;
}

int32_t oracle_token(uint64_t prefix_hash, uint64_t seed) {
  return static_cast<int32_t>(mix(prefix_hash ^ mix(seed)) % kOracleVocab);
}

ModelConfig oracle_config() {
  ModelConfig c;
  c.vocab_size = kOracleVocab;
  c.n_layers = 3;
  c.head_dim = 32;
  c.index_head_dim = 32;
  c.window_size = 8;
  c.compress_ratios = {0, 2, 1};
  c.kv_source_layers = {1, 2};
  c.index_source_layers = {1, 2};
  return c;
}

OracleDevice::OracleDevice(StateStore& state, double step_us)
    : state_(state), step_us_(step_us), slots_(static_cast<size_t>(state.options().slots)) {
  start();
}

OracleDevice::~OracleDevice() { stop(); }

std::string OracleDevice::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

void OracleDevice::expect(bool condition, const char* what, const RowGroup& group, int64_t pos,
                          int64_t at) {
  if (condition) return;
  const std::lock_guard lock(mutex_);
  if (problem_.empty())
    problem_ = fmt::format("{} wrong: request {} slot {} position {} sees row {}", what,
                           group.sequence, group.slot, pos, at);
}

void OracleDevice::run(StepState& state, const StepState* previous) {
  state_.apply(state.plan.page_updates);
  const double end = now_us() + step_us_;
  StepOutput& output = state.output;
  output.groups.assign(state.plan.groups.size(), {});
  for (size_t g = 0; g < state.plan.groups.size(); ++g) {
    const RowGroup& group = state.plan.groups[g];
    Slot& slot = slots_[static_cast<size_t>(group.slot)];
    GroupOutput& out = output.groups[g];
    out.first_token = static_cast<int>(output.tokens.size());
    if (group.remap >= 0)
      expect(previous &&
                 previous->plan.groups[static_cast<size_t>(group.remap)].sequence == group.sequence,
             "remap", group, slot.length, group.remap);
    if (group.setup) slot = Slot{.setup = group.setup, .tokens = group.setup->tokens};
    if (group.kind == GroupKind::kDecode) {
      decode(group, output, out);
      continue;
    }
    process(group, slot, group.start, group.start + group.count, &group);
    slot.length = group.start + group.count;
    output.rows += group.count;
    if (!group.last) continue;
    if (slot.setup->anchor) {
      slot.anchor = *slot.setup->anchor;
    } else {
      slot.anchor = oracle_token(hash_of(slot.tokens, slot.length), slot.setup->seed);
      output.tokens.push_back(slot.anchor);
      out.tokens = 1;
    }
    draft(slot);
  }
  output.logprobs.resize(output.tokens.size());
  while (now_us() < end) std::this_thread::yield();
}

void OracleDevice::decode(const RowGroup& group, StepOutput& output, GroupOutput& out) {
  Slot& slot = slots_[static_cast<size_t>(group.slot)];
  const auto most = static_cast<size_t>(group.max_rows - 1);
  if (slot.drafts.size() > most) slot.drafts.resize(most);
  slot.tokens.resize(static_cast<size_t>(slot.length));
  slot.tokens.push_back(slot.anchor);
  slot.tokens.insert(slot.tokens.end(), slot.drafts.begin(), slot.drafts.end());
  const int64_t end = slot.length + 1 + static_cast<int64_t>(slot.drafts.size());
  process(group, slot, slot.length, end, nullptr);
  output.rows += static_cast<int>(end - slot.length);
  out.verified = static_cast<int>(slot.drafts.size());
  int32_t token;
  for (size_t i = 0;; ++i) {
    token = oracle_token(hash_of(slot.tokens, slot.length + 1 + static_cast<int64_t>(i)),
                         slot.setup->seed);
    output.tokens.push_back(token);
    ++out.tokens;
    if (i >= slot.drafts.size() || slot.drafts[i] != token) break;
    ++out.accepted;
  }
  slot.length += 1 + out.accepted;
  slot.anchor = token;
  draft(slot);
}

// Up to `drafts` guesses, each right three times in four.
void OracleDevice::draft(Slot& slot) {
  slot.drafts.clear();
  if (slot.setup->draft.mode == DraftMode::kOff) return;
  std::vector<int32_t> tokens(slot.tokens.begin(), slot.tokens.begin() + slot.length);
  tokens.push_back(slot.anchor);
  uint64_t hash = hash_of(tokens, slot.length + 1);
  const auto count = mix(hash) % (static_cast<uint64_t>(slot.setup->draft.drafts) + 1);
  for (uint64_t i = 0; i < count; ++i) {
    int32_t token = oracle_token(hash, slot.setup->seed);
    if (mix(hash ^ 99) % 4 == 0) token = (token + 1) % kOracleVocab;
    slot.drafts.push_back(token);
    hash = extend_hash(hash, token);
  }
}

// Checks what each row sees, then writes what it leaves.
void OracleDevice::process(const RowGroup& group, const Slot& slot, int64_t start, int64_t end,
                           const RowGroup* prefill) {
  const KvView& kv = state_.view();
  const int64_t window_floor = prefill ? prefill->window_floor : 0;
  const int64_t write_floor = prefill ? prefill->write_floor : 0;
  const int64_t decoder_start = prefill ? prefill->decoder_start : start;
  const int64_t decoder_floor = prefill ? prefill->decoder_floor : 0;
  std::vector<uint64_t> hash(static_cast<size_t>(end) + 1);
  hash[0] = 17;
  for (int64_t p = 0; p < end; ++p)
    hash[static_cast<size_t>(p) + 1] =
        extend_hash(hash[static_cast<size_t>(p)], slot.tokens[static_cast<size_t>(p)]);
  const auto after = [&](int64_t positions) { return hash[static_cast<size_t>(positions)]; };

  for (int64_t p = start; p < end; ++p) {
    const auto check_ring = [&](int ring, int64_t floor, const char* what) {
      for (int64_t q = std::max<int64_t>({0, floor, p - kv.window + 1}); q < p; ++q)
        expect(read_tag(kv.ring_row(group.slot, ring, q)) == after(q + 1), what, group, p, q);
    };
    check_ring(kEncoderRing, window_floor, "encoder ring");
    write_tag(kv.ring_row(group.slot, kEncoderRing, p), after(p + 1));
    if (p >= decoder_start) {
      check_ring(kDecoderRing, decoder_floor, "decoder ring");
      write_tag(kv.ring_row(group.slot, kDecoderRing, p), after(p + 1));
    }
    for (int source = 0; source < kv.sources; ++source) {
      const int ratio = source == 0 ? 2 : 1;
      if (ratio == 2 && p % 2 == 0) write_tag(kv.tail(group.slot, source, p), after(p + 1));
      const bool completes = (p + 1) % ratio == 0;
      if (completes && p >= write_floor) {
        if (ratio == 2)
          expect(read_tag(kv.tail(group.slot, source, p - 1)) == after(p), "half", group, p, p - 1);
        const int64_t row = p / ratio;
        write_tag(kv.main_row(group.slot, source, row), after(p + 1));
        write_tag(kv.index_row(group.slot, source, row), after(p + 1));
      }
      for (int64_t row = 0; row < (p + 1) / ratio; ++row) {
        expect(read_tag(kv.main_row(group.slot, source, row)) == after((row + 1) * ratio),
               "main row", group, p, row);
        expect(read_tag(kv.index_row(group.slot, source, row)) == after((row + 1) * ratio),
               "index row", group, p, row);
      }
    }
  }
}

}  // namespace peregrine::test
