// Spellings of the control tokens (spec: encoding.md section 1). The bar is U+FF5C, the word
// separator U+2581. Ids always come from the model's tokenizer, by spelling.
#pragma once

#include <string_view>

namespace peregrine::control {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kPad = "<｜▁pad▁｜>";
inline constexpr std::string_view kSystem = "<｜System｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";
inline constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kImage = "<｜deepseek_image｜>";
inline constexpr std::string_view kPlaceholderPrefix = "<｜place▁holder▁no▁";

}  // namespace peregrine::control
