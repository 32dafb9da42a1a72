// The options of sharing between servers, and what they set up.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "kvshare/sharing.h"
#include "kvshare/transfer.h"

namespace peregrine {

struct SharingFlags {
  std::string directory;  // "local", redis://..., unix:/...; empty: no sharing
  std::string prefix = "peregrine";
  uint64_t memory_bytes = uint64_t{1} << 30;
  std::string disk_directory;
  uint64_t disk_bytes = uint64_t{16} << 30;
  int max_prepared = 6;
  std::string listen;  // "host:port" for other servers; empty: none
  std::string transport = "auto";
  std::string secret_file;
};

void add_sharing_options(CLI::App& command, SharingFlags& flags);

// Vault, directory and what works on them; destroyed after the engine.
class SharingSetup {
 public:
  // Throws Error for options that cannot work.
  SharingSetup(const SharingFlags& flags, Engine& engine);
  ~SharingSetup();

  Sharing* sharing() const { return sharing_.get(); }

 private:
  std::unique_ptr<StateVault> vault_;
  std::unique_ptr<TransferServer> server_;
  std::unique_ptr<TransferClient> client_;
  std::unique_ptr<Sharing> sharing_;
};

}  // namespace peregrine
