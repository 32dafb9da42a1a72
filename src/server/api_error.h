// What a request is refused with, and how each protocol writes it (spec: api.md sections 5, 7.3).
#pragma once

#include <exception>
#include <string>

#include "peregrine/error.h"
#include "server/http.h"

namespace peregrine {

enum class Dialect { kOpenAi, kAnthropic };

struct ApiError : std::exception {
  ApiError(int status, std::string message, std::string param = {}, std::string code = {})
      : status(status),
        message(std::move(message)),
        param(std::move(param)),
        code(std::move(code)) {}
  const char* what() const noexcept override { return message.c_str(); }

  int status;
  std::string message;          // one sentence
  std::string param;            // the field it is about; empty: none
  std::string code;             // "invalid_value"; empty: none
  int retry_after_seconds = 0;  // 0: no header
};

// Of the library's errors; the field is taken from the head of the sentence where it names one.
// Internal errors keep their sentence out of the answer.
ApiError to_api_error(const Error& error);

// "temperature is 3, expected ..." is about temperature; empty when the sentence names no field.
std::string field_of(const std::string& sentence);

// {"error":{...}} or {"type":"error","error":{...}}: the body of an answer and the data of an error
// event in a stream.
std::string error_json(const ApiError& error, Dialect dialect);
HttpResponse error_response(const ApiError& error, Dialect dialect);

}  // namespace peregrine
