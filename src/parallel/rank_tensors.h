// Tensor parallelism on host memory: the ranks' shares of each product put together over a
// communicator, and the leader's orders to the others (spec: parallel.md).
//
// Results are those of one process, bit for bit: shares are whole sums, act values travel as the
// bf16 numbers that they are, and results of experts are added by every rank alike, in ascending
// expert order with the shared expert last.
//
// Works on backends whose tensors are host memory (cpu, reference). Steps run on one thread at a
// time; what is not a step may be announced from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "model/tensor_group.h"
#include "parallel/communicator.h"
#include "parallel/rank_bytes.h"
#include "parallel/step_orders.h"

namespace peregrine {

class RankTensors : public TensorGroup {
 public:
  explicit RankTensors(std::unique_ptr<Communicator> communicator);

  const TensorSplit& split() const override { return split_; }

  void gather(Backend& backend, const GatherArgs& args) override;
  void embed(Backend& backend, const Weight& table, int64_t whole_rows, const int32_t* tokens,
             int copies, Tensor x) override;
  void experts(Backend& backend, int layer, const ExpertsArgs& args) override;

  void made_store(const StateOptions& options) override;
  void applied(std::span<const PageUpdate> updates) override;
  void loaded_recent(int slot, int64_t tokens, std::span<const std::byte> bytes) override;
  void made_forward(int max_rows) override;
  void made_drafter(int max_rows, int max_segments) override;
  void runs_step(const Step& step, bool with_drafter) override;
  void begins_drafts(std::span<const DraftSegment> segments) override;
  void drafts_slot(int slot, std::span<const int> active,
                   std::span<const int32_t> previous) override;

  // On the leader, when nothing will follow.
  void end();
  // On the others: the leader's next message.
  std::span<const std::byte> next_orders();
  // All ranks must compute alike: throws Error(kUnavailable), on every rank, when the names of
  // their kernels (Backend::kernels_name) differ.
  void check_kernels(const std::string& mine);

  Communicator& communicator() { return *communicator_; }

 private:
  // Adds an order that waits for the next message.
  template <typename Fill>
  void announce(OrderKind kind, Fill fill);
  void send_orders();

  std::span<const Bytes> share(const Collective& what, std::span<const std::byte> mine,
                               bool leader_only);
  void compute_shared(Backend& backend, int layer, const ExpertsArgs& args);
  void compute_routed(Backend& backend, const ExpertsArgs& args);

  const std::unique_ptr<Communicator> communicator_;
  const TensorSplit split_;
  int64_t steps_ = 0;

  std::mutex mutex_;
  BytesWriter orders_;  // with mutex_: not yet sent
  Bytes message_;       // the one being sent

  // Reused from call to call; they grow to the largest step and stay.
  std::vector<Bytes> outgoing_;  // by rank
  Bytes mine_;
  std::vector<float> rows_;  // embeddings of this rank's tokens
  std::vector<int32_t> tokens_;
  std::vector<float> hidden_part_, up_part_, hidden_, shared_part_;  // the shared expert
  std::vector<float> pair_rows_, pair_weights_, pair_results_;       // this rank's experts
  std::vector<int32_t> pair_ids_;
};

}  // namespace peregrine
