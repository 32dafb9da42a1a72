// Models of several ranks in one process, each with its share of the experts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model_impl.h"
#include "engine/tiny.h"
#include "mixed_requests.h"
#include "parallel/rank_experts.h"
#include "thread_group.h"

namespace peregrine::test {

// One model a rank with its share of the experts.
class ModelGroup {
 public:
  explicit ModelGroup(int ranks, const std::string& device = "cpu") : threads_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      exchanges_.push_back(std::make_unique<RankExperts>(threads_.open(rank, 0)));
      models_.push_back(Model::Impl::load(model_path("tiny"), {.device = device, .threads = 1},
                                          exchanges_.back().get()));
    }
  }
  int ranks() const { return threads_.ranks(); }
  ThreadGroup& threads() { return threads_; }
  RankExperts& exchange(int rank) { return *exchanges_[static_cast<size_t>(rank)]; }
  std::shared_ptr<const Model> model(int rank) { return models_[static_cast<size_t>(rank)]; }

 private:
  ThreadGroup threads_;
  std::vector<std::unique_ptr<RankExperts>> exchanges_;
  std::vector<std::shared_ptr<const Model>> models_;
};

}  // namespace peregrine::test
