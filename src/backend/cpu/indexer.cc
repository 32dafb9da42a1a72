// Index scores and selection (spec: model.md 5.6, 5.7). Keys are scored in groups of 16, several
// step rows of one sequence against each group; the score lists of kBlockRows step rows exist at a
// time, and the selection counts instead of sorting.
#include <algorithm>
#include <limits>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "formats/quantize.h"

namespace peregrine {
namespace {

constexpr int kBlockRows = 8;
constexpr int kSharedRows = 4;         // step rows scored against one widened key group
constexpr int64_t kChunkKeys = 2048;   // keys of one piece of work
constexpr int64_t kChunkBlocks = 128;  // candidate blocks of one piece
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Some step rows of one sequence against a range of keys, or one step row against a range of its
// candidate blocks.
struct Piece {
  int row = 0;
  int rows = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Everything the pieces of one block of step rows read and write.
struct Block {
  const IndexArgs& args;
  const StepRows& step;
  const KvView& kv;
  const cpu::AttentionKernel& kernel;
  bool round;
  int first;  // step row
  int heads;
  int dim;
  float* queries;  // [kBlockRows, heads * dim] fp4 values
  float* scores;   // [kBlockRows, stride]
  int64_t stride;

  int64_t visible(int row) const { return (step.pos[row] + 1) / args.ratio; }
  float* row_scores(int row) const { return scores + (row - first) * stride; }
  const float* query(int row) const { return queries + (row - first) * int64_t{heads} * dim; }
  const float* weights(int row) const { return args.weights.f32() + row * int64_t{heads}; }
};

// `keys` [count]: row numbers; scores go to outputs [rows][count].
void score_group(const Block& block, int row, int rows, const int64_t* keys, int count,
                 float* const* outputs, float* scratch) {
  const uint8_t* packed[cpu::kKeyGroup];
  for (int i = 0; i < count; ++i) {
    packed[i] = block.kv.index_row(block.step.slot[row], block.args.source, keys[i]);
  }
  const float* queries[kSharedRows];
  const float* weights[kSharedRows];
  for (int i = 0; i < rows; ++i) {
    queries[i] = block.query(row + i);
    weights[i] = block.weights(row + i);
  }
  block.kernel.score_keys({.queries = queries,
                           .weights = weights,
                           .rows = rows,
                           .heads = block.heads,
                           .dim = block.dim,
                           .keys = packed,
                           .count = count,
                           .round = block.round,
                           .scores = outputs,
                           .scratch = scratch});
}

void score_range(const Block& block, const Piece& piece, float* scratch) {
  int64_t keys[cpu::kKeyGroup];
  float* outputs[kSharedRows];
  for (int64_t key = piece.begin; key < piece.end; key += cpu::kKeyGroup) {
    const int count = static_cast<int>(std::min<int64_t>(cpu::kKeyGroup, piece.end - key));
    for (int i = 0; i < count; ++i) keys[i] = key + i;
    for (int i = 0; i < piece.rows; ++i) outputs[i] = block.row_scores(piece.row + i) + key;
    score_group(block, piece.row, piece.rows, keys, count, outputs, scratch);
  }
}

void score_candidates(const Block& block, const Piece& piece, int block_rows, float* scratch) {
  const int32_t* blocks =
      block.args.candidates.rows + int64_t{piece.row} * block.args.candidates.capacity;
  const int64_t visible = block.visible(piece.row);
  float* scores = block.row_scores(piece.row);
  int64_t keys[cpu::kKeyGroup];
  int count = 0;
  const auto flush = [&] {
    float group[cpu::kKeyGroup];
    float* output = group;
    score_group(block, piece.row, 1, keys, count, &output, scratch);
    for (int i = 0; i < count; ++i) scores[keys[i]] = group[i];
    count = 0;
  };
  for (int64_t c = piece.begin; c < piece.end; ++c) {
    const int64_t end = std::min(visible, (int64_t{blocks[c]} + 1) * block_rows);
    for (int64_t key = int64_t{blocks[c]} * block_rows; key < end; ++key) {
      keys[count++] = key;
      if (count == cpu::kKeyGroup) flush();
    }
  }
  if (count > 0) flush();
}

std::vector<Piece> cut(const Block& block, int last) {
  std::vector<Piece> pieces;
  if (block.args.mode == IndexMode::kReindex) {
    for (int row = block.first; row < last; ++row) {
      const int64_t count = block.args.candidates.count[row];
      for (int64_t begin = 0; begin < count; begin += kChunkBlocks) {
        pieces.push_back({row, 1, begin, std::min(count, begin + kChunkBlocks)});
      }
    }
    return pieces;
  }
  for (int row = block.first; row < last;) {
    int rows = 1;
    while (rows < kSharedRows && row + rows < last &&
           block.step.slot[row + rows] == block.step.slot[row]) {
      ++rows;
    }
    // The newest row of the group sees most; what older ones do not see is not read back.
    int64_t visible = 0;
    for (int i = 0; i < rows; ++i) visible = std::max(visible, block.visible(row + i));
    for (int64_t begin = 0; begin < visible; begin += kChunkKeys) {
      pieces.push_back({row, rows, begin, std::min(visible, begin + kChunkKeys)});
    }
    row += rows;
  }
  return pieces;
}

// Maxima of blocks of consecutive scores; the newest block always wins a place.
void block_maxima(const float* scores, int64_t n, int block_rows, float* out) {
  const int64_t blocks = (n + block_rows - 1) / block_rows;
  for (int64_t b = 0; b < blocks; ++b) {
    float best = kMinusInfinity;
    const int64_t end = std::min(n, (b + 1) * block_rows);
    for (int64_t i = b * block_rows; i < end; ++i) best = scores[i] > best ? scores[i] : best;
    out[b] = best;
  }
  out[blocks - 1] = std::numeric_limits<float>::infinity();
}

}  // namespace

void CpuBackend::index_select(const IndexArgs& args, const StepRows& step, const KvView& kv) {
  const int heads = static_cast<int>(args.weights.cols);
  const int dim = static_cast<int>(args.q.cols) / heads;
  const int block_rows = std::max(1, config().candidate_block_size);
  for (int first = 0; first < step.rows; first += kBlockRows) {
    const int last = std::min(step.rows, first + kBlockRows);
    Block block{.args = args,
                .step = step,
                .kv = kv,
                .kernel = kernels_.attention,
                .round = rounds(),
                .first = first,
                .heads = heads,
                .dim = dim,
                .queries = nullptr,
                .scores = nullptr,
                .stride = 0};
    int64_t longest = 0;
    for (int row = first; row < last; ++row) longest = std::max(longest, block.visible(row));
    // A row's scores, then the maxima of its blocks.
    const int64_t maxima_at = longest;
    block.stride = longest + longest / block_rows + 1;
    const size_t query_floats = static_cast<size_t>(args.q.cols) * kBlockRows;
    block.queries = score_scratch_.reserve_array<float>(
        query_floats + static_cast<size_t>(block.stride) * kBlockRows);
    block.scores = block.queries + query_floats;
    const size_t key_floats = static_cast<size_t>(dim) * cpu::kKeyGroup;
    for (cpu::Scratch& scratch : thread_scratch_)
      scratch.reserve_array<float>(std::max(key_floats, cpu::top_k_scratch(longest)));

    pool_.parallel_for(last - first, [&](int64_t i) {
      const int row = first + static_cast<int>(i);
      float* query = block.queries + i * args.q.cols;
      std::copy_n(args.q.f32() + row * args.q.cols, args.q.cols, query);
      fp4_e8m0_in_place(query, args.q.cols);
      if (args.mode == IndexMode::kReindex) {
        std::fill_n(block.row_scores(row), block.visible(row), kMinusInfinity);
      }
    });
    const std::vector<Piece> pieces = cut(block, last);
    pool_.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t i, int thread) {
      float* scratch = thread_scratch_[static_cast<size_t>(thread)].reserve_array<float>(0);
      const Piece& piece = pieces[static_cast<size_t>(i)];
      if (args.mode == IndexMode::kReindex) {
        score_candidates(block, piece, block_rows, scratch);
      } else {
        score_range(block, piece, scratch);
      }
    });
    pool_.parallel_for(last - first, [&](int64_t i, int thread) {
      const int row = first + static_cast<int>(i);
      float* scores = block.row_scores(row);
      const int64_t visible = block.visible(row);
      const auto best = [&](const float* of, int64_t n, int64_t k, bool skip, const Selection& to) {
        to.count[row] = static_cast<int32_t>(kernels_.top_k(
            {.scores = of,
             .n = n,
             .k = k,
             .skip_infinite = skip,
             .scratch = thread_scratch_[static_cast<size_t>(thread)].reserve_array<uint32_t>(0),
             .out = to.rows + int64_t{row} * to.capacity}));
      };
      if (args.mode == IndexMode::kPublish) {
        if (visible > 0) block_maxima(scores, visible, block_rows, scores + maxima_at);
        best(scores + maxima_at, (visible + block_rows - 1) / block_rows,
             config().candidate_topk_blocks, true, args.candidates);
      }
      best(scores, visible, config().index_topk, false, args.selected);
    });
  }
}

}  // namespace peregrine
