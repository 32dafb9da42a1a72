// Throwing peregrine::Error with a formatted sentence.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "peregrine/error.h"

namespace peregrine {

// fail(ErrorKind::kIo, "{}: cannot open ({})", path, reason) throws; it never returns.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace peregrine
