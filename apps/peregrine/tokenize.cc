// peregrine tokenize: what the tokenizer makes of a text, and back.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "base/fail.h"
#include "commands.h"
#include "model_options.h"
#include "output.h"
#include "text/json_text.h"
#include "text/tokenizer.h"

namespace peregrine {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  peregrine tokenize \"Once upon a time\"\n"
    "  peregrine tokenize --decode \"351 357 3031\"";

struct Options {
  std::string model = bundled_model();
  bool ids_only = false;
  bool decode = false;
  bool plain = false;
  std::string text;
  bool has_text = false;
};

// Ids in any of the usual spellings: "1 2 3", "1,2,3", "[1, 2, 3]".
std::vector<int32_t> parse_ids(std::string_view text) {
  constexpr std::string_view kSeparators = " \t\r\n,[]";
  std::vector<int32_t> ids;
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kSeparators), text.size()));
    if (text.empty()) return ids;
    const std::string_view word = text.substr(0, text.find_first_of(kSeparators));
    int32_t id = 0;
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != word.data() + word.size()) {
      fail(ErrorKind::kInvalidArgument, "\"{}\" is not a token id", word);
    }
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
}

std::string decoded(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = parse_ids(text);
  for (const int32_t id : ids) {
    if (!tokenizer.has(id)) {
      fail(ErrorKind::kInvalidArgument, "token id {} has no entry in this tokenizer of {} ids", id,
           tokenizer.vocab_size());
    }
  }
  return tokenizer.decode(ids);
}

// One token a line, or all ids on one.
std::string encoded(const Tokenizer& tokenizer, const Options& options) {
  const auto ids = tokenizer.encode(
      options.text, options.plain ? SpecialTokens::kPlain : SpecialTokens::kRecognise);
  if (options.ids_only) return fmt::format("{}\n", fmt::join(ids, " "));
  std::string out;
  for (const int32_t id : ids) {
    out += fmt::format("{:>7}  {}{}\n", id, json_quote(repair_utf8(tokenizer.token_bytes(id))),
                       tokenizer.is_added(id) ? "  control" : "");
  }
  return out + fmt::format("{} tokens, {} bytes\n", ids.size(), options.text.size());
}

void run(Options& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  if (!options.has_text) {
    options.text.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  const std::string out =
      options.decode ? decoded(tokenizer, options.text) : encoded(tokenizer, options);
  write_output(out);
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "Show the tokens of a text, or decode ids");
  command->footer(kExamples);
  CLI::Option* model =
      command->add_option("--model", options->model, "Model directory or tokenizer.json");
  if (options->model.empty()) model->required();
  command->add_flag("--ids", options->ids_only, "Print only the ids, on one line");
  command->add_flag("--decode", options->decode, "TEXT holds ids; print what they decode to");
  command->add_flag("--plain", options->plain,
                    "Spellings of control tokens in TEXT are ordinary characters");
  CLI::Option* text =
      command->add_option("TEXT", options->text, "Read from standard input if absent");
  command->callback([options, text] {
    options->has_text = text->count() > 0;
    run(*options);
  });
}

}  // namespace peregrine
