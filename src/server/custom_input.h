// Undoes the wrapping of a custom tool's input: of the arguments {"input": "..."} the string itself
// is what the client gets, piece by piece (spec: api.md section 8.3).
#pragma once

#include <string>
#include <string_view>

namespace peregrine {

class CustomInput {
 public:
  // The next characters of the arguments' JSON; returns the next characters of the input.
  std::string push(std::string_view json);
  // The arguments are complete. Arguments of another form are the input as they are.
  std::string finish();

 private:
  enum class State { kHead, kString, kDone };
  void take_head();
  void take_string(std::string& out);

  State state_ = State::kHead;
  std::string held_;  // what cannot be decided yet
};

}  // namespace peregrine
