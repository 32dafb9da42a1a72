#include "rank_options.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <thread>

#include "base/fail.h"
#include "engine/model_impl.h"
#include "parallel/expert_reader.h"
#include "parallel/make_rank_tensors.h"
#include "parallel/tensor_follower.h"

namespace peregrine {
namespace {

constexpr unsigned kLastWordSeconds = 3;
constexpr useconds_t kForwardUs = 300'000;

// What the handler of SIGTERM looks at.
std::atomic<const RankGroup*> watched_group;
std::atomic<const Communicator*> watched_steps;

// Other threads may be in the middle of anything, and the other ranks wait: nothing is unwound.
// Of several that notice, one speaks. It leaves mpirun the time to pass its words on: what is still
// in the pipe when mpirun learns of this process's end is lost. Handlers may call it.
void end_process(std::string_view sentence) {
  static std::atomic_flag speaking;
  while (speaking.test_and_set()) pause();
  std::array<char, 512> line;
  const auto end = fmt::format_to_n(line.data(), line.size() - 1, "peregrine: {}", sentence).out;
  *end = '\n';
  // A failure to write could not be told anybody.
  (void)!write(STDERR_FILENO, line.data(), static_cast<size_t>(end + 1 - line.data()));
  usleep(kForwardUs);
  _exit(1);
}

// mpirun ends the ranks that are left as soon as one has died, with SIGKILL soon after SIGTERM:
// they name it at once. Returns when all processes are there.
void name_dead_rank() {
  const RankGroup& group = *watched_group;
  const int dead = group.dead_rank();
  if (dead < 0) return;
  std::array<char, 256> sentence;
  const auto end = fmt::format_to_n(sentence.data(), sentence.size(),
                                    "rank {} of {} stopped in step {}: rank {} has died",
                                    group.rank(), group.ranks(), watched_steps.load()->step(), dead)
                       .out;
  end_process({sentence.data(), static_cast<size_t>(end - sentence.data())});
}

// Without a dead rank it is this run that is asked to stop.
void on_terminate(int) {
  name_dead_rank();
  alarm(kLastWordSeconds);
}

}  // namespace

void add_rank_options(CLI::App& command, RankFlags& flags) {
  command
      .add_option("--tp", flags.tp,
                  "Under mpirun -n N: N shares heads, experts and the large matrices among the "
                  "ranks, which answer every request together; 1 does not (default: 1)")
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--ep", flags.ep,
                  "Under mpirun -n N: N shares the routed experts among the ranks, 1 gives every "
                  "rank all of them (default: N)")
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--dp", flags.dp,
                  "Under mpirun: ranks that take requests (default: as many as "
                  "the command can use)")
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--rank-timeout", flags.timeout_seconds,
                  "Seconds without a sign of another rank after which the run ends (default: 8)")
      ->check(CLI::Range(0.1, 3600.0));
  BalanceOptions& b = flags.balance;
  command
      .add_option("--redundant-experts", b.redundant,
                  "Copies of busy experts a layer, over all ranks that share the experts "
                  "(default: 0)")
      ->check(CLI::Range(0, 65536));
  command
      .add_option("--eplb-window", b.window_steps,
                  "Steps over which chosen experts are counted (default: 1000)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command
      .add_option("--eplb-interval", b.interval_steps,
                  "Steps between re-arrangements of the experts over the ranks; 0: they stay "
                  "(default: 10000)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
}

std::string balance_line(const BalanceStats& stats) {
  const auto& layers = stats.slowest_over_mean;
  if (layers.empty()) return {};
  const auto worst = std::max_element(layers.begin(), layers.end());
  return fmt::format(
      "experts: re-arranged {} times, {} read anew ({:.1f} MB), steps waited {:.3f} s; "
      "slowest/mean "
      "{:.3f} over layers, {:.3f} in layer {}",
      stats.rearrangements, stats.experts_read, static_cast<double>(stats.bytes_read) * 1e-6,
      stats.stall_seconds,
      std::accumulate(layers.begin(), layers.end(), 0.0) / static_cast<double>(layers.size()),
      *worst, worst - layers.begin());
}

Ranks::Ranks(const RankFlags& flags, int most_dp, bool dispatch) : balance_(flags.balance) {
  const int started = launched_ranks();
  const int most = most_dp == 0 ? started : std::min(most_dp, started);
  const int ep = flags.ep == 0 ? started : flags.ep;
  dp_ = flags.dp == 0 ? (flags.tp > 1 ? 1 : most) : flags.dp;
  if (flags.tp != 1 && flags.tp != started)
    fail(ErrorKind::kInvalidArgument,
         "--tp {} with {} rank(s): expected 1 or as many as mpirun -n starts", flags.tp, started);
  if (flags.tp > 1 && (ep != started || dp_ != 1))
    fail(ErrorKind::kInvalidArgument,
         "--tp {} --ep {} --dp {}: tensor-parallel ranks share the experts and answer together, "
         "expected --ep {} --dp 1",
         flags.tp, ep, dp_, flags.tp);
  if (flags.tp > 1 && dispatch)
    fail(ErrorKind::kInvalidArgument,
         "--tp {}: this command shares experts among its ranks, not matrices, expected --tp 1",
         flags.tp);
  if (flags.tp > 1 && flags.balance.redundant > 0)
    fail(ErrorKind::kInvalidArgument,
         "--redundant-experts {} with --tp {}: the ranks run the same rows, expected 0",
         flags.balance.redundant, flags.tp);
  if (ep != 1 && ep != started)
    fail(ErrorKind::kInvalidArgument,
         "--ep {} with {} rank(s): expected 1 or as many as mpirun -n starts", ep, started);
  if (dp_ > most)
    fail(ErrorKind::kInvalidArgument, "--dp {} with {} rank(s): this command can use {}", dp_,
         started, most);
  if (started > 1 && ep == 1 && dp_ != started)
    fail(ErrorKind::kInvalidArgument,
         "--ep 1 --dp {} with {} ranks: {} would have nothing to do, expected --dp {}", dp_,
         started, started - dp_, started);
  if (started > 1 && ep == 1 && dispatch)
    fail(ErrorKind::kInvalidArgument,
         "--ep 1 with {} ranks: this command shares the experts among its ranks, expected --ep {}",
         started, started);

  group_ = join_ranks();
  const CommunicatorOptions options{.timeout_seconds = flags.timeout_seconds,
                                    .on_failure = end_process};
  control_ = group_->open(options);
  if (!several()) return;
  watched_group = group_.get();
  watched_steps = control_.get();
  signal(SIGTERM, on_terminate);
  loading_ = std::make_unique<LoadingWatch>(group_->open_transport(), options);
  if (flags.tp > 1) {
    tensor_channel_ = group_->open(options);
    return;
  }
  if (ep == 1) return;
  experts_ = std::make_unique<RankExperts>(group_->open(options));
  watched_steps = &experts_->communicator();
  VoteMail* mail = nullptr;
  if (dispatch && rank() == 0) {
    dispatcher_ = std::make_unique<RequestDispatcher>(ranks(), dp_);
    mail = dispatcher_.get();
  } else if (dispatch) {
    worker_ = std::make_unique<RequestWorker>();
    mail = worker_.get();
  }
  votes_ = std::make_unique<VoteChannel>(group_->open(options), mail);
  voting_ = std::make_unique<Voting>(*votes_, VotingOptions{}, dispatcher_.get());
}

void Ranks::asked_to_end() const {
  if (several()) name_dead_rank();
}

Ranks::~Ranks() {
  if (several()) signal(SIGTERM, SIG_DFL);
}

std::shared_ptr<const Model> Ranks::load(ModelOptions options) {
  if (experts_ && options.device == "cuda")
    fail(ErrorKind::kInvalidArgument,
         "--device cuda with {} ranks: experts are shared over ranks on the CPU only so far",
         ranks());
  if (tensor_channel_) {
    tensors_ = make_rank_tensors(std::move(tensor_channel_), options.device);
    watched_steps = &tensors_->communicator();
  }
  if (several() && options.threads == 0)
    options.threads =
        std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / group_->local_ranks());
  auto model = load_model(options, exchange(), tensors(), [this](uint64_t bytes) {
    if (loading_) loading_->progress(bytes);
  });
  kernels_ = model->impl().backend->kernels_name();
  if (experts_) experts_->balance(experts_of_layers(*model), checkpoint_experts(model), balance_);
  return model;
}

void Ranks::wait_for_all() {
  if (loading_) loading_->wait_for_all();
  if (tensors_) tensors_->check_kernels(kernels_);
}

void Ranks::serve_others(const Model& model) {
  if (tensors_) return follow_leader(model, *tensors_);
  const Model::Impl& m = model.impl();
  while (join_pass(*m.backend, m.config(), m.weights, Pass::kNone) != Pass::kEnd) {
  }
}

StepsEnd::~StepsEnd() {
  if (tensors_) tensors_->end();
  if (exchange_) exchange_->open_pass(Pass::kEnd, /*has_rows=*/false);
}

}  // namespace peregrine
