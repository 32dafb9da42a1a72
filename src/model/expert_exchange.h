// Routed experts that other ranks hold: what the forward pass calls instead of its own backend's
// experts when a model is spread over ranks (spec: parallel.md, expert parallelism).
//
// Ranks run their own rows, but every rank takes part in every layer's experts. So passes over
// layers are opened together: each rank says which pass it is about to run and with how many rows;
// a rank without rows still calls experts() for each layer, with zero rows. An exchange is used by
// one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "backend/backend.h"
#include "checkpoint/config.h"
#include "model/slice.h"

namespace peregrine {

// Layers that run one after another without a decision in between.
enum class Pass : uint8_t {
  kNone,     // nothing of my own: whatever the others run
  kEncoder,  // layers before the decoder half
  kDecoder,  // the decoder half
  kDrafter,  // the drafter's stages
  kEnd,      // no more passes
};

struct OpenPass {
  Pass pass = Pass::kNone;
  bool any_rows = false;  // of any rank; without any nobody runs the pass
};

// The routed expert that a tensor of the table belongs to, if it belongs to one.
struct RoutedExpert {
  int expert = 0;
  int of = 0;  // experts that its layer has
};
std::optional<RoutedExpert> routed_expert_of(const ModelConfig& config, std::string_view tensor);

class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;

  // Which of a layer's `experts` this rank holds. Throws Error(kInvalidArgument) when there are
  // too few to share.
  virtual Slice held(int experts) const = 0;

  // Meets the same call of all other ranks. All that name a pass must name the same one.
  virtual OpenPass open_pass(Pass mine, bool has_rows) = 0;

  // Backend::experts over all ranks' experts, same bits. `layer` names the call: the same on all
  // ranks. Entries of args.routed outside held() are empty.
  virtual void experts(Backend& backend, int layer, const ExpertsArgs& args) = 0;
};

class Weights;

// The calls of `pass` with no rows, for a rank whose experts the others need.
void take_part(Backend& backend, const ModelConfig& config, const Weights& weights, Pass pass);

// Opens a pass without rows of one's own and takes part if others have some; returns which it was.
Pass join_pass(Backend& backend, const ModelConfig& config, const Weights& weights, Pass mine);

}  // namespace peregrine
