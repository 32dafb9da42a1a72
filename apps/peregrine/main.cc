// The program: registers the subcommands and turns every failure into one sentence and exit code 1.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "commands.h"
#include "interrupt.h"
#include "output.h"
#include "peregrine/error.h"

namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  peregrine generate --chat \"Tell me a story about a brave fox named Ruby.\"\n"
    "  peregrine inspect config.json --context 131072 --json\n"
    "Each command explains itself: peregrine inspect --help";

int complain(const char* sentence) {
  fmt::print(stderr, "peregrine: {}\n", sentence);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs DeepSeek-V4.1-Flash checkpoints: from a prompt to tokens.", "peregrine");
  app.set_version_flag("--version", "peregrine " PEREGRINE_VERSION);
  app.require_subcommand(1);
  app.footer(kExamples);
  try {
    peregrine::prepare_standard_streams();
    peregrine::add_generate(app);
    peregrine::add_chat(app);
    peregrine::add_batch(app);
    peregrine::add_bench(app);
    peregrine::add_eplb(app);
    peregrine::add_inspect(app);
    peregrine::add_kv(app);
    peregrine::add_serve(app);
    peregrine::add_tokenize(app);
    app.parse(argc, argv);
    peregrine::flush_output();
  } catch (const peregrine::Interrupted&) {
    return 130;
  } catch (const peregrine::ExitCode& exit) {
    return exit.code;
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : complain(error.what());
  } catch (const std::bad_alloc&) {
    return complain("out of memory");
  } catch (const std::exception& error) {
    return complain(error.what());
  }
  return 0;
}
