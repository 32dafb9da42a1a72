// The directory of servers in one process: the default, which needs no Redis.
//
// Its servers are alive as long as their directories exist. Always available.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kvshare/directory.h"
#include "kvshare/directory_book.h"

namespace peregrine {

class LocalDirectory : public Directory {
 public:
  // What the directories of one process share.
  class Shared {
   public:
    Shared() : book_(random_epoch()) {}

   private:
    friend class LocalDirectory;
    std::mutex mutex_;
    DirectoryBook book_;
    std::vector<LocalDirectory*> members_;
  };

  // `shared` null: a directory of its own.
  explicit LocalDirectory(std::string owner, DirectoryNotices notices = {},
                          std::shared_ptr<Shared> shared = nullptr);
  ~LocalDirectory() override;

  std::optional<DirectoryRecord> look_up(const std::string& key) override;
  DirectoryClaim claim(const std::string& key, const DirectoryVersion& seen) override;
  DirectoryOutcome check(const std::string& key, const DirectoryVersion& version) override;
  bool available() const override { return true; }
  const std::string& owner() const override { return owner_; }

 private:
  const std::string owner_;
  const DirectoryNotices notices_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace peregrine
