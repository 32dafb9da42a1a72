// Expert parallelism on host memory: each rank holds a run of experts of every layer, token rows
// travel to the experts that their router chose, and results travel back (spec: parallel.md).
//
// A row travels as the FP8 codes and scales that the expert's product would make of it anyway, or
// as it is where the experts are not quantised; quantising what the codes mean gives the same
// values again. A result travels per row and expert, and the home rank adds the results in the
// order of a single process: ascending experts, the shared one last, one rounding. Hence EP N
// equals EP 1 bit for bit, wherever experts are and whichever copy of one computes a row: they may
// move between ranks while steps run (expert_balance.h).
//
// Works on backends whose tensors are host memory (cpu, reference); another is refused.
#pragma once

#include <memory>
#include <vector>

#include "model/expert_exchange.h"
#include "parallel/communicator.h"
#include "parallel/expert_balance.h"

namespace peregrine {

class RankExperts : public ExpertExchange {
 public:
  explicit RankExperts(std::unique_ptr<Communicator> communicator);

  // From here on experts move to where they are needed. Before the first step; what `reader` uses
  // must live as long as this object. See ExpertBalance.
  void balance(std::vector<int> experts_of_layer, ExpertReader reader,
               const BalanceOptions& options);
  // Nothing before balance().
  BalanceStats balance_stats() const { return balance_ ? balance_->stats() : BalanceStats{}; }

  Slice held(int experts) const override;
  OpenPass open_pass(Pass mine, bool has_rows) override;
  void experts(Backend& backend, int layer, const ExpertsArgs& args) override;

  Communicator& communicator() { return *communicator_; }
  int64_t bytes_sent() const { return bytes_sent_; }  // to other ranks

 private:
  // Where the result of a row's k-th expert comes back: result `index` of what `rank` sends.
  struct Place {
    int rank = 0;
    int index = 0;
  };

  void dispatch(int layer, LayerExperts& held, const ExpertsArgs& args, bool quantised);
  void compute(Backend& backend, const LayerExperts& held, const ExpertsArgs& args);
  void combine(Backend& backend, int layer, const LayerExperts& held, const ExpertsArgs& args);
  LayerExperts& layer(int layer, std::span<const Expert> routed);
  void count_sent();

  const std::unique_ptr<Communicator> communicator_;
  std::vector<LayerExperts> layers_;  // an entry without copies has not been used
  std::unique_ptr<ExpertBalance> balance_;
  int64_t steps_ = 0, bytes_sent_ = 0;

  // Reused from call to call; they grow to the largest step and stay.
  std::vector<Bytes> outgoing_;             // by rank
  std::vector<LayerExperts::Copy> chosen_;  // [rows * active]: who computes
  std::vector<Place> places_;               // [rows * active]
  std::vector<float> pair_rows_;            // inputs of the pairs to compute here
  std::vector<int32_t> pair_ids_;           // slots of this rank
  std::vector<float> pair_weights_;
  std::vector<float> pair_results_;
  std::vector<int> pairs_of_rank_;  // pairs that each rank sent
  std::vector<float> shared_results_;
};

}  // namespace peregrine
