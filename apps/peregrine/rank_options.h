// Which part of a model and of the work each of several ranks takes (docs/parallel.md): options
// shared by the commands that can run under mpirun, and what they make of them.
#pragma once

#include <memory>
#include <string>

#include "model_options.h"
#include "parallel/loading_watch.h"
#include "parallel/rank_experts.h"
#include "parallel/rank_group.h"
#include "parallel/rank_tensors.h"
#include "parallel/request_dispatcher.h"
#include "parallel/request_worker.h"
#include "parallel/vote_channel.h"

namespace CLI {
class App;
}

namespace peregrine {

struct RankFlags {
  int tp = 1;  // ranks that share every matrix
  int ep = 0;  // ranks that share the experts of a layer; 0: not given
  int dp = 0;  // ranks that take requests; 0: not given
  double timeout_seconds = 8;
  BalanceOptions balance;
};

// --tp, --ep, --dp, --rank-timeout, --redundant-experts, --eplb-window, --eplb-interval
void add_rank_options(CLI::App& command, RankFlags& flags);

// "experts: re-arranged 3 times, ..."; empty before the first window of counts.
std::string balance_line(const BalanceStats& stats);

// The ranks of this run. Made before the model is loaded; lives until the command ends.
class Ranks {
 public:
  // `most_dp`: ranks that can take requests in this command, 0: all. Throws
  // Error(kInvalidArgument) when the flags do not fit the ranks that were started.
  // `dispatch`: rank 0 gives requests to the engines of the others, which have a worker().
  Ranks(const RankFlags& flags, int most_dp, bool dispatch = false);
  ~Ranks();

  int rank() const { return group_->rank(); }
  int ranks() const { return group_->ranks(); }
  bool several() const { return ranks() > 1; }
  int dp() const { return dp_; }
  bool takes_requests() const { return rank() < dp_; }

  // As load_model(), with only this rank's experts. Cores of a host are divided among its ranks.
  std::shared_ptr<const Model> load(ModelOptions options);

  // What a rank that takes no requests does until the others have ended: lends its share of the
  // model to their steps. Only with exchange() or tensors().
  void serve_others(const Model& model);

  RankTensors* tensors() { return tensors_.get(); }   // after load(); null: no tensor parallelism
  RankExperts* exchange() { return experts_.get(); }  // null: every rank has all experts
  StepGroup* step_group() { return voting_.get(); }   // null: ranks step as they like
  RequestWorker* worker() { return worker_.get(); }   // of ranks that rank 0 gives requests to
  Communicator& control() { return *control_; }       // for the command's own thread
  // To be called where SIGTERM is waited for: it may be mpirun's answer to the death of a rank,
  // which this names; the process then ends.
  void asked_to_end() const;
  // Until all ranks have loaded and are ready to step.
  void wait_for_all();

 private:
  std::unique_ptr<RankGroup> group_;
  int dp_ = 1;
  BalanceOptions balance_;
  std::unique_ptr<Communicator> control_;
  std::string kernels_;                           // what this rank computes with
  std::unique_ptr<Communicator> tensor_channel_;  // with tensor parallelism, until load()
  std::unique_ptr<RankTensors> tensors_;
  std::unique_ptr<RankExperts> experts_;
  std::unique_ptr<RequestDispatcher> dispatcher_;
  std::unique_ptr<RequestWorker> worker_;
  std::unique_ptr<VoteChannel> votes_;
  std::unique_ptr<Voting> voting_;
  std::unique_ptr<LoadingWatch> loading_;  // null: one rank
};

// On a rank that takes requests: tells the ranks in serve_others() that no step will follow,
// however the work ended. `exchange` only where no StepGroup ends the others' engines.
class StepsEnd {
 public:
  StepsEnd(ExpertExchange* exchange, RankTensors* tensors)
      : exchange_(exchange), tensors_(tensors) {}
  ~StepsEnd();
  StepsEnd(const StepsEnd&) = delete;
  StepsEnd& operator=(const StepsEnd&) = delete;

 private:
  ExpertExchange* exchange_;
  RankTensors* tensors_;
};

}  // namespace peregrine
