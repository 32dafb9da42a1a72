// The subcommands, one file each: add_NAME registers its options and what it runs. A command
// reports failure by throwing peregrine::Error; main() prints it.
#pragma once

namespace CLI {
class App;
}

namespace peregrine {

// Thrown by a command that has ended as it should with an exit code of its own.
struct ExitCode {
  int code = 0;
};
inline constexpr int kSomeLinesFailed = 3;

void add_batch(CLI::App& app);
void add_bench(CLI::App& app);
void add_chat(CLI::App& app);
void add_eplb(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_kv(CLI::App& app);
void add_serve(CLI::App& app);
void add_tokenize(CLI::App& app);

}  // namespace peregrine
