#include "toml_config.h"

#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <fstream>

#include "base/fail.h"

namespace peregrine {
namespace {

std::string text_of(const std::string& key, const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  fail(ErrorKind::kInvalidArgument,
       "config file, {}: expected a string, a number, true or false, or a list of these", key);
}

toml::table parse_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(ErrorKind::kIo, "{}: cannot read the config file", path);
  try {
    return toml::parse(file);
  } catch (const toml::parse_error& error) {
    fail(ErrorKind::kInvalidArgument, "{}, line {}: {}", path, error.source().begin.line,
         error.description());
  }
}

}  // namespace

void apply_config_file(CLI::App& command, const std::string& path) {
  for (const auto& [name, node] : parse_file(path)) {
    const std::string key(name.str());
    CLI::Option* option = command.get_option_no_throw("--" + key);
    if (!option || key == "config" || key == "help")
      fail(ErrorKind::kInvalidArgument, "{}: \"{}\" is no option of {}", path, key,
           command.get_name());
    if (option->count() > 0) continue;
    if (const toml::array* list = node.as_array()) {
      for (const toml::node& entry : *list) option->add_result(text_of(key, entry));
    } else {
      option->add_result(text_of(key, node));
    }
    option->run_callback();
  }
}

}  // namespace peregrine
