// The directory's records in memory: what the scripts of redis_scripts.h do, said in C++.
//
// Owns: the meaning of look-up, claim, check and heartbeat. The local directory works on a book,
// and tests compare Redis with one and explore one exhaustively. Not thread-safe; copyable. Time is
// the caller's, in seconds, and must not run backwards.
#pragma once

#include <map>
#include <string>
#include <unordered_map>

#include "kvshare/directory.h"

namespace peregrine {

class DirectoryBook {
 public:
  explicit DirectoryBook(std::string epoch) : epoch_(std::move(epoch)) {}

  DirectoryRecord look_up(const std::string& key, double now);
  // A claim also shows that its owner is alive, for that many seconds.
  DirectoryClaim claim(const std::string& key, const DirectoryVersion& seen,
                       const std::string& owner, double alive_seconds, double now);
  DirectoryOutcome check(const std::string& key, const DirectoryVersion& version, double now);
  void beat(const std::string& owner, double alive_seconds, double now);

  // As after a restart without data.
  void restart_empty(std::string epoch);

  size_t records() const { return records_.size(); }

 private:
  struct Record {
    uint64_t sequence = 0;
    std::string owner;
    double expires = 0;
  };
  Record* find(const std::string& key, double now);
  bool alive(const std::string& owner, double now) const;

  std::string epoch_;
  std::unordered_map<std::string, Record> records_;
  std::map<std::string, double> alive_until_;
  double next_sweep_ = 0;
};

}  // namespace peregrine
