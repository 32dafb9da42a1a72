// The subcommands, one file each: add_NAME registers its options and what it runs. A command
// reports failure by throwing peregrine::Error; main() prints it.
#pragma once

namespace CLI {
class App;
}

namespace peregrine {

void add_bench(CLI::App& app);
void add_chat(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_serve(CLI::App& app);
void add_tokenize(CLI::App& app);

}  // namespace peregrine
