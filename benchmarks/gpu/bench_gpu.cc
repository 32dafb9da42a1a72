// Speed of the CUDA backend on one GPU at the released shapes with synthetic weights, against the
// limits measured in the same run: kernels one by one, whole layers as CUDA graphs, contexts,
// prefill chunks (docs/cuda.md explains the columns).
//
//   bench_gpu [kernels] [layers] [contexts] [prefill] [tiny]     all without arguments
//
// models/tiny is looked for in the current folder or in PEREGRINE_ROOT.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>

#include "fill.h"
#include "synthetic_model.h"
#include "tiny.h"

namespace peregrine::bench {
namespace {

constexpr double kFp8Peak = 1979e12;  // dense, of the H200's data sheet
constexpr int kRows[] = {1, 6, 8};
constexpr int kContext = 8192;

template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(format, std::forward<Args>(args)...);
  std::fflush(stdout);
}

double elapsed_ms(cudaStream_t stream, const std::function<void()>& work) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  cudaEventRecord(begin, stream);
  work();
  cudaEventRecord(end, stream);
  cudaEventSynchronize(end);
  float ms = 0;
  cudaEventElapsedTime(&ms, begin, end);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms;
}

// Bytes read plus written a second by a copy between device buffers.
double copy_bandwidth() {
  constexpr size_t kBytes = size_t{4} << 30;
  void *from = nullptr, *to = nullptr;
  cuda::check(cudaMalloc(&from, kBytes), "copy source");
  cuda::check(cudaMalloc(&to, kBytes), "copy target");
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  fill(stream, from, kBytes, 1, ~uint64_t{0}, 0);
  std::vector<double> rates;
  for (int i = 0; i < 11; ++i) {
    const double ms = elapsed_ms(
        stream, [&] { cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream); });
    rates.push_back(2.0 * kBytes / (ms * 1e-3));
  }
  cudaFree(from);
  cudaFree(to);
  cudaStreamDestroy(stream);
  return median(rates);
}

// Kernels one by one on the weights of a model's layers.
class Kernels {
 public:
  Kernels(SyntheticModel& model, double bandwidth)
      : m_(model), b_(*model.backend), c_(model.config), bandwidth_(bandwidth) {}

  void decode(int rows) {
    print("\nkernels, {} rows, context {}\n{:<28}{:>12}{:>10}{:>8}\n", rows, kContext, "kernel",
          "bytes", "us", "share");
    const int64_t d = c_.dim, heads = static_cast<int64_t>(c_.n_heads) * c_.head_dim;
    linear("wq_a", rows, d, [](const LayerWeights& w) { return w.attn.wq_a; });
    linear("wq_b", rows, c_.q_lora_rank, [](const LayerWeights& w) { return w.attn.wq_b; });
    linear("wkv", rows, d, [](const LayerWeights& w) { return w.attn.wkv; });
    grouped(rows, heads);
    linear("wo_b", rows, static_cast<int64_t>(c_.o_groups) * c_.o_lora_rank,
           [](const LayerWeights& w) { return w.attn.wo_b; });
    linear(
        "router", rows, d, [](const LayerWeights& w) { return w.moe.gate; }, LinearKind::kFull);
    experts(rows);
    head(rows);
    small(rows);
    for (const int context : {8192, 131072, 1048576}) state_kernels(rows, context);
  }

  // Operations of a chunk of a prompt, with the rate of their multiply-adds.
  void chunk(int rows) {
    print("\nchunk of {} rows\n{:<28}{:>10}{:>10}\n", rows, "kernel", "us", "TFLOP/s");
    const auto rate = [&](const std::string& name, double flops, double us) {
      print("{:<28}{:>10.0f}{:>10.0f}\n", name, us, flops / us * 1e-6);
    };
    const auto product = [&](const char* name, auto pick, LinearKind kind) {
      const Weight w = pick(layer(0));
      const Tensor x = act(rows, w.in);
      const Tensor y = make(rows, w.out, kind == LinearKind::kFull ? Elem::kF32 : Elem::kBF16);
      rate(name, 2.0 * rows * static_cast<double>(w.in * w.out),
           time(4, [&](int i) { b_.linear(x, pick(layer(i)), kind, y); }));
    };
    product(
        "wq_a", [](const LayerWeights& w) { return w.attn.wq_a; }, LinearKind::kQuantised);
    product(
        "wq_b", [](const LayerWeights& w) { return w.attn.wq_b; }, LinearKind::kQuantised);
    product(
        "wo_b", [](const LayerWeights& w) { return w.attn.wo_b; }, LinearKind::kQuantised);
    product(
        "router", [](const LayerWeights& w) { return w.moe.gate; }, LinearKind::kFull);
    const int64_t width = static_cast<int64_t>(c_.n_heads) * c_.head_dim;
    const Tensor o = act(rows, width), t = make(rows, layer(0).attn.wo_a.out, Elem::kBF16);
    rate("wo_a", 2.0 * rows * static_cast<double>(layer(0).attn.wo_a.in * layer(0).attn.wo_a.out),
         time(4, [&](int i) { b_.grouped_linear(o, layer(i).attn.wo_a, c_.o_groups, t); }));
    const Tensor u = act(rows, c_.dim), out = make(rows, c_.dim, Elem::kBF16);
    const int k = c_.n_activated_experts, n = c_.n_routed_experts;
    std::vector<int32_t> ids;
    uint64_t random = 7;
    for (int r = 0; r < rows; ++r) {
      std::set<int32_t> row;
      while (static_cast<int>(row.size()) < k) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        row.insert(static_cast<int32_t>((random >> 33) % static_cast<uint64_t>(n)));
      }
      ids.insert(ids.end(), row.begin(), row.end());
    }
    const Tensor chosen = make(rows, k, Elem::kI32), weights = make(rows, k, Elem::kF32);
    b_.copy_in(chosen.data, ids.data(), ids.size() * sizeof(int32_t));
    fill(b_.stream(), weights.data, weights.bytes(), 9, 0x007FFFFF007FFFFFu, 0x3E8000003E800000u);
    rate("experts", 6.0 * rows * c_.dim * c_.moe_inter_dim * (k + 1.0), time(2, [&](int i) {
           const MoeWeights& w = layer(i).moe;
           b_.experts({.u = u,
                       .ids = chosen,
                       .weights = weights,
                       .routed = w.routed,
                       .shared = &w.shared,
                       .out = out});
         }));
    const StepRows step = step_rows(rows, 65536);
    const Tensor q = act(rows, width), result = act(rows, width), kv = act(rows, c_.head_dim);
    const Tensor packed =
        make(rows, static_cast<int64_t>(m_.state->view().window_row_bytes), Elem::kU8);
    b_.pack_window(kv, packed);
    IndexArgs args{.q = act(rows, c_.index_n_heads * c_.index_head_dim),
                   .weights = act(rows, c_.index_n_heads),
                   .source = 1,
                   .ratio = 1,
                   .mode = IndexMode::kFull,
                   .selected = selection(rows, c_.index_topk),
                   .candidates = selection(rows, c_.candidate_topk_blocks)};
    b_.index_select(args, step, m_.state->view());
    rate("attention", 4.0 * rows * width * (c_.index_topk + c_.window_size), time(2, [&](int i) {
           b_.sparse_attention({.q = q,
                                .window = packed,
                                .ring_layer = i % m_.state->view().ring_layers,
                                .source = 1,
                                .selected = args.selected,
                                .sinks = layer(i).attn.sinks,
                                .out = result},
                               step, m_.state->view());
         }));
    const Tensor x = act(rows, c_.hc_mult * c_.dim);
    const HcMix mix{make(rows, c_.hc_mult, Elem::kF32), make(rows, c_.hc_mult, Elem::kF32),
                    make(rows, c_.hc_mult * c_.hc_mult, Elem::kF32)};
    rate("hc_mixes", 2.0 * rows * 24 * static_cast<double>(x.cols),
         time(4, [&](int i) { b_.hc_mixes(x, layer(i).hc_attn, mix); }));
    rate("hc_expand", 0, time(4, [&](int) { b_.hc_expand(u, mix.post, mix.comb, x); }));
  }

  // Index scores of a chunk of a prompt, apart from the products.
  void index_scores(int rows, int context) {
    const Tensor q = act(rows, c_.index_n_heads * c_.index_head_dim);
    const Tensor weights = act(rows, c_.index_n_heads);
    const double us = index_us(q, weights, rows, context, IndexMode::kFull, 2);
    const double flops = 2.0 * rows * (context / 2.0) * c_.index_n_heads * c_.index_head_dim;
    print("index scores: {} rows at {}: {:.0f} us, {:.0f} TFLOP/s\n", rows, context, us,
          flops / us * 1e-6);
  }

 private:
  Tensor make(int64_t rows, int64_t cols, Elem elem) {
    Tensor t{nullptr, rows, cols, elem};
    t.data = b_.allocate(t.bytes());
    return t;
  }
  // bf16 numbers of size 0.5 .. 2 with both signs.
  Tensor act(int64_t rows, int64_t cols) {
    const Tensor t = make(rows, cols, Elem::kBF16);
    fill(b_.stream(), t.data, t.bytes(), ++seed_ << 40, 0x80FF80FF80FF80FFu, 0x3F003F003F003F00u);
    return t;
  }

  // Microseconds of one of `count` operations that run in turns in one graph.
  double time(int count, const std::function<void(int)>& operation) {
    const RecordKey key{this, ++keys_};
    const auto all = [&] {
      for (int i = 0; i < count; ++i) operation(i);
    };
    for (int i = 0; i < 3; ++i) b_.run_recorded(key, all);
    std::vector<double> times;
    for (int i = 0; i < 15; ++i)
      times.push_back(elapsed_ms(b_.stream(), [&] { b_.run_recorded(key, all); }) * 1e3 / count);
    b_.forget_recorded(this);
    return median(times);
  }
  void report(const std::string& name, double bytes, double us) {
    print("{:<28}{:>12.0f}{:>10.2f}{:>7.0f}%\n", name, bytes, us,
          100 * bytes / (us * 1e-6) / bandwidth_);
  }
  const LayerWeights& layer(int i) const {
    return m_.weights->layers[static_cast<size_t>(i) % m_.weights->layers.size()];
  }

  template <typename Pick>
  void linear(const char* name, int rows, int64_t in, Pick pick,
              LinearKind kind = LinearKind::kQuantised) {
    const Tensor x = act(rows, in);
    const Weight w = pick(layer(0));
    const Tensor y = make(rows, w.out, kind == LinearKind::kFull ? Elem::kF32 : Elem::kBF16);
    report(name, static_cast<double>(w.bytes()),
           time(24, [&](int i) { b_.linear(x, pick(layer(i)), kind, y); }));
  }
  void grouped(int rows, int64_t in) {
    const Tensor x = act(rows, in);
    const Weight w = layer(0).attn.wo_a;
    const Tensor y = make(rows, w.out, Elem::kBF16);
    report("wo_a", static_cast<double>(w.bytes()),
           time(24, [&](int i) { b_.grouped_linear(x, layer(i).attn.wo_a, c_.o_groups, y); }));
  }
  void head(int rows) {
    const Tensor x = act(rows, c_.dim);
    const Tensor y = make(rows, c_.vocab_size, Elem::kF32);
    report("head", static_cast<double>(m_.weights->head.bytes()),
           time(4, [&](int) { b_.linear(x, m_.weights->head, LinearKind::kFull, y); }));
  }
  void experts(int rows) {
    const int k = c_.n_activated_experts, n = c_.n_routed_experts, sets = 12;
    const Tensor u = act(rows, c_.dim), out = make(rows, c_.dim, Elem::kBF16);
    const Tensor weights = make(rows, k, Elem::kF32);
    fill(b_.stream(), weights.data, weights.bytes(), 9, 0x007FFFFF007FFFFFu, 0x3E8000003E800000u);
    std::vector<Tensor> ids;
    double distinct = 0;
    uint64_t random = 7;
    for (int s = 0; s < sets; ++s) {
      std::vector<int32_t> all;
      std::set<int32_t> seen;
      for (int r = 0; r < rows; ++r) {
        std::set<int32_t> row;
        while (static_cast<int>(row.size()) < k) {
          random = random * 6364136223846793005u + 1442695040888963407u;
          row.insert(static_cast<int32_t>((random >> 33) % static_cast<uint64_t>(n)));
        }
        all.insert(all.end(), row.begin(), row.end());
        seen.insert(row.begin(), row.end());
      }
      distinct += static_cast<double>(seen.size()) / sets;
      ids.push_back(make(rows, k, Elem::kI32));
      b_.copy_in(ids.back().data, all.data(), all.size() * sizeof(int32_t));
    }
    const auto expert_bytes = [](const Expert& e) {
      return static_cast<double>(e.w1.bytes() + e.w2.bytes() + e.w3.bytes());
    };
    const MoeWeights& moe = layer(0).moe;
    const double bytes = distinct * expert_bytes(moe.routed[0]) + expert_bytes(moe.shared);
    report(fmt::format("experts ({:.1f} + shared)", distinct), bytes, time(sets, [&](int i) {
             const MoeWeights& w = layer(i).moe;
             b_.experts({.u = u,
                         .ids = ids[static_cast<size_t>(i)],
                         .weights = weights,
                         .routed = w.routed,
                         .shared = &w.shared,
                         .out = out});
           }));
  }

  // The operations between the products, whose bytes are few.
  void small(int rows) {
    const int64_t n = c_.hc_mult, d = c_.dim;
    const Tensor x = act(rows, n * d), u = act(rows, d);
    const HcMix mix{make(rows, n, Elem::kF32), make(rows, n, Elem::kF32),
                    make(rows, n * n, Elem::kF32)};
    const double fn = static_cast<double>((2 + n) * n * n * d * 4);
    report("hc_mixes", fn, time(24, [&](int i) { b_.hc_mixes(x, layer(i).hc_attn, mix); }));
    report("hc_collapse_norm", static_cast<double>(x.bytes()),
           time(24, [&](int i) { b_.hc_collapse_norm(x, mix.pre, layer(i).attn_norm, u); }));
    report("hc_expand", 2.0 * static_cast<double>(x.bytes()),
           time(24, [&](int) { b_.hc_expand(u, mix.post, mix.comb, x); }));
    const Tensor qr = act(rows, c_.q_lora_rank);
    report("rms_norm", 2.0 * static_cast<double>(qr.bytes()),
           time(24, [&](int i) { b_.rms_norm(qr, layer(i).attn.q_norm, qr); }));
    const Tensor logits = make(rows, c_.n_routed_experts, Elem::kF32);
    const Tensor ids = make(rows, c_.n_activated_experts, Elem::kI32);
    const Tensor weights = make(rows, c_.n_activated_experts, Elem::kF32);
    report("route", static_cast<double>(logits.bytes()),
           time(24, [&](int i) { b_.route(logits, layer(i).moe.router, nullptr, ids, weights); }));
  }

  StepRows step_rows(int rows, int context) {
    std::vector<int32_t> pos, zero(static_cast<size_t>(rows), 0),
        end(static_cast<size_t>(rows), rows);
    for (int i = 0; i < rows; ++i) pos.push_back(context - rows + i);
    const auto put = [&](const std::vector<int32_t>& values) {
      const Tensor t = make(1, rows, Elem::kI32);
      b_.copy_in(t.data, values.data(), t.bytes());
      return t.i32();
    };
    const Tensor flags = make(1, rows, Elem::kU8);
    return {.rows = rows,
            .token = put(zero),
            .pos = put(pos),
            .slot = put(zero),
            .first_row = put(zero),
            .end_row = put(end),
            .window_floor = put(zero),
            .writes_kv = flags.u8(),
            .is_image = flags.u8()};
  }
  Selection selection(int rows, int capacity) {
    return {make(rows, capacity, Elem::kI32).i32(), make(rows, 1, Elem::kI32).i32(), capacity};
  }

  double index_us(Tensor q, Tensor weights, int rows, int context, IndexMode mode, int ratio) {
    const StepRows step = step_rows(rows, context);
    IndexArgs args{.q = q,
                   .weights = weights,
                   .source = ratio == 2 ? 0 : 1,
                   .ratio = ratio,
                   .mode = mode,
                   .selected = selection(rows, c_.index_topk),
                   .candidates = selection(rows, c_.candidate_topk_blocks)};
    if (mode == IndexMode::kReindex) {
      args.mode = IndexMode::kPublish;
      b_.index_select(args, step, m_.state->view());
      args.mode = mode;
    }
    return time(rows > 64 ? 1 : 8, [&](int) { b_.index_select(args, step, m_.state->view()); });
  }

  void state_kernels(int rows, int context) {
    const Tensor index_q = act(rows, c_.index_n_heads * c_.index_head_dim);
    const Tensor index_weights = act(rows, c_.index_n_heads);
    const auto key = static_cast<double>(m_.state->view().index_row_bytes);
    const std::string at = fmt::format(" at {}K", context / 1024);
    report("index full r2" + at, key * context / 2,
           index_us(index_q, index_weights, rows, context, IndexMode::kFull, 2));
    report("index publish r1" + at, key * context,
           index_us(index_q, index_weights, rows, context, IndexMode::kPublish, 1));
    const double candidates =
        std::min<double>(context, c_.candidate_topk_blocks * c_.candidate_block_size);
    report("index reindex r1" + at, key * candidates,
           index_us(index_q, index_weights, rows, context, IndexMode::kReindex, 1));

    const StepRows step = step_rows(rows, context);
    const int64_t width = static_cast<int64_t>(c_.n_heads) * c_.head_dim;
    const Tensor q = act(rows, width), out = act(rows, width), kv = act(rows, c_.head_dim);
    const Tensor packed =
        make(rows, static_cast<int64_t>(m_.state->view().window_row_bytes), Elem::kU8);
    b_.pack_window(kv, packed);
    IndexArgs args{.q = index_q,
                   .weights = index_weights,
                   .source = 1,
                   .ratio = 1,
                   .mode = IndexMode::kPublish,
                   .selected = selection(rows, c_.index_topk),
                   .candidates = selection(rows, c_.candidate_topk_blocks)};
    b_.index_select(args, step, m_.state->view());
    const double bytes =
        rows * (c_.index_topk * static_cast<double>(m_.state->view().main_row_bytes) +
                c_.window_size * static_cast<double>(packed.cols)) +
        2.0 * static_cast<double>(q.bytes());
    report("attention" + at, bytes, time(8, [&](int i) {
             b_.sparse_attention({.q = q,
                                  .window = packed,
                                  .ring_layer = i % m_.state->view().ring_layers,
                                  .source = 1,
                                  .selected = args.selected,
                                  .sinks = layer(i).attn.sinks,
                                  .out = out},
                                 step, m_.state->view());
           }));
  }

  SyntheticModel& m_;
  SyntheticBackend& b_;
  const ModelConfig& c_;
  double bandwidth_;
  uint64_t seed_ = 0, keys_ = 0;
};

constexpr LayerKind kKinds[] = {LayerKind::kEncoder, LayerKind::kDecoderReuse,
                                LayerKind::kDecoderReindex};

// Weight bytes that a layer of the kind reads for `distinct` experts, without KV.
double layer_bytes(const SyntheticModel& m, double distinct) {
  const LayerWeights& w = m.weights->layers.back();
  const AttentionWeights& a = w.attn;
  double bytes = 0;
  for (const Weight* x :
       {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b, &a.index_wq_b, &a.index_weights, &w.moe.gate,
        &w.moe.shared.w1, &w.moe.shared.w2, &w.moe.shared.w3})
    if (*x) bytes += static_cast<double>(x->bytes());
  const Expert& e = w.moe.routed[0];
  bytes += distinct * static_cast<double>(e.w1.bytes() + e.w2.bytes() + e.w3.bytes());
  const double n = m.config.hc_mult;
  return bytes + 2 * (2 + n) * n * n * m.config.dim * 4;
}

// Whole layers: what four more of a kind add to a step that is one graph.
void layers(double bandwidth) {
  constexpr int kMore = 4;
  print("\nlayers, one step a graph, context {}\n{:<18}{:>5}{:>10}{:>12}{:>10}{:>8}\n", kContext,
        "layer", "rows", "experts", "bytes", "us", "share");
  double base[std::size(kRows)];
  {
    SyntheticModel model(layers_config(LayerKind::kEncoder, 0), 16384, 16, 1);
    for (size_t i = 0; i < std::size(kRows); ++i)
      base[i] = model.step_ms(kContext, kRows[i], 20, 15);
  }
  for (const LayerKind kind : kKinds) {
    SyntheticModel model(layers_config(kind, kMore), 16384, 16, 1);
    for (size_t i = 0; i < std::size(kRows); ++i) {
      const double distinct = model.distinct_experts(kContext, kRows[i]);
      const double us = (model.step_ms(kContext, kRows[i], 20, 15) - base[i]) * 1e3 / kMore;
      const double bytes = layer_bytes(model, distinct);
      print("{:<18}{:>5}{:>10.1f}{:>12.0f}{:>10.1f}{:>7.0f}%\n", kind_name(kind), kRows[i],
            distinct, bytes, us, 100 * bytes / (us * 1e-6) / bandwidth);
    }
  }
}

// A model of every kind at several contexts, scaled to the release's 40 layers.
void contexts() {
  constexpr int kContexts[] = {8192, 131072, 1048576 - 16};
  print("\ncontexts, 1 row, ms of a step\n{:<18}{:>10}{:>10}{:>10}\n", "layers", "8K", "128K",
        "1M");
  double base[3], total[3];
  {
    SyntheticModel model(layers_config(LayerKind::kEncoder, 0), 1048576, 16, 1);
    for (int i = 0; i < 3; ++i) total[i] = base[i] = model.step_ms(kContexts[i], 1, 20, 9);
  }
  print("{:<18}{:>10.3f}{:>10.3f}{:>10.3f}\n", "two sources, head", base[0], base[1], base[2]);
  // Layers of a kind in the release besides the two of the base.
  const std::pair<LayerKind, int> kinds[] = {{LayerKind::kEncoderSource, 2},
                                             {LayerKind::kEncoder, 17},
                                             {LayerKind::kDecoderReuse, 15},
                                             {LayerKind::kDecoderReindex, 4}};
  for (const auto& [kind, count] : kinds) {
    constexpr int kMore = 2;
    SyntheticModel model(layers_config(kind, kMore), 1048576, 16, 1);
    double ms[3];
    for (int i = 0; i < 3; ++i) {
      ms[i] = (model.step_ms(kContexts[i], 1, 20, 9) - base[i]) / kMore;
      total[i] += count * ms[i];
    }
    print("{:<18}{:>10.4f}{:>10.4f}{:>10.4f}\n", std::string("one ") + kind_name(kind), ms[0],
          ms[1], ms[2]);
  }
  print("{:<18}{:>10.2f}{:>10.2f}{:>10.2f}   (sum over 40 layers; 1M / 8K = {:.3f})\n", "release",
        total[0], total[1], total[2], total[2] / total[0]);
}

// Chunks of a prompt: what four encoder layers add.
void prefill() {
  constexpr int kMore = 2;
  print("\nprefill, chunk at position {}: one encoder layer\n{:<8}{:>10}{:>14}{:>12}{:>14}\n",
        kContext, "rows", "ms", "TFLOP/s", "of FP8 peak", "tokens/s x20");
  std::vector<double> base;
  const int chunks[] = {512, 1024, 2048, 4096, 8192};
  {
    SyntheticModel model(layers_config(LayerKind::kEncoder, 0), 16384 + 1024, 8192, 1);
    for (const int rows : chunks) base.push_back(model.step_ms(kContext, rows, 1, 5, false));
  }
  SyntheticModel model(layers_config(LayerKind::kEncoder, kMore), 16384 + 1024, 8192, 1);
  const ModelConfig& c = model.config;
  const double per_token = 2.0 * (static_cast<double>(c.dim) * c.q_lora_rank +
                                  static_cast<double>(c.q_lora_rank) * c.n_heads * c.head_dim +
                                  static_cast<double>(c.dim) * c.head_dim +
                                  static_cast<double>(c.n_heads) * c.head_dim * c.o_lora_rank +
                                  static_cast<double>(c.o_groups) * c.o_lora_rank * c.dim +
                                  static_cast<double>(c.dim) * c.n_routed_experts +
                                  3.0 * c.dim * c.moe_inter_dim * (c.n_activated_experts + 1));
  for (size_t i = 0; i < std::size(chunks); ++i) {
    const double ms = (model.step_ms(kContext, chunks[i], 1, 5, false) - base[i]) / kMore;
    const double rate = per_token * chunks[i] / (ms * 1e-3);
    print("{:<8}{:>10.3f}{:>14.0f}{:>11.1f}%{:>14.0f}\n", chunks[i], ms, rate * 1e-12,
          100 * rate / kFp8Peak, chunks[i] / (ms * 1e-3 * 20));
  }
}

int run(const std::set<std::string>& parts) {
  const auto wanted = [&](const char* part) { return parts.empty() || parts.contains(part); };
  cudaDeviceProp device{};
  cuda::check(cudaGetDeviceProperties(&device, 0), "the device");
  int driver = 0;
  cudaDriverGetVersion(&driver);
  const double bandwidth = copy_bandwidth();
  print("{}, {} multiprocessors, CUDA driver {}.{}: copy bandwidth {:.0f} GB/s\n", device.name,
        device.multiProcessorCount, driver / 1000, driver % 1000 / 10, bandwidth * 1e-9);
  if (wanted("kernels")) {
    SyntheticModel model(layers_config(LayerKind::kDecoderReuse, 4), 1048576, 16, 1);
    Kernels kernels(model, bandwidth);
    for (const int rows : kRows) kernels.decode(rows);
    kernels.chunk(4096);
    for (const int context : {131072, 1048576}) kernels.index_scores(512, context);
  }
  if (wanted("layers")) layers(bandwidth);
  if (wanted("contexts")) contexts();
  if (wanted("prefill")) prefill();
  if (wanted("tiny")) {
    const char* root = std::getenv("PEREGRINE_ROOT");
    tiny(std::string(root != nullptr ? root : ".") + "/models/tiny");
  }
  return 0;
}

}  // namespace
}  // namespace peregrine::bench

int main(int argc, char** argv) {
  try {
    return peregrine::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_gpu: {}\n", error.what());
    return 1;
  }
}
