#include "support/fixtures.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/fail.h"

namespace peregrine::test {
namespace {

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double e4m3_value(uint8_t code) {
  const double sign = code & 0x80 ? -1 : 1;
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, -9);
  return sign * std::ldexp(8 + mantissa, exponent - 10);
}

double e8m0_value(uint8_t code) {
  return code == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127);
}

double bf16_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

double real_value(const TensorView& view, int64_t i) {
  const std::byte* at = view.data + static_cast<size_t>(i) * (dtype_bits(view.dtype) / 8);
  switch (view.dtype) {
    case DType::kF64:
      return load<double>(at);
    case DType::kF32:
      return load<float>(at);
    case DType::kBF16:
      return bf16_value(load<uint16_t>(at));
    case DType::kF8E4M3:
      return e4m3_value(load<uint8_t>(at));
    case DType::kF8E8M0:
      return e8m0_value(load<uint8_t>(at));
    case DType::kI64:
      return static_cast<double>(load<int64_t>(at));
    case DType::kI32:
      return load<int32_t>(at);
    case DType::kI16:
      return load<int16_t>(at);
    case DType::kI8:
      return load<int8_t>(at);
    case DType::kU8:
    case DType::kBool:
      return load<uint8_t>(at);
    case DType::kF16:
    case DType::kF4:
      break;
  }
  fail(ErrorKind::kInternal, "fixture tensor '{}' has dtype {}, which is not converted to numbers",
       view.name, dtype_name(view.dtype));
}

int64_t integer_value(const TensorView& view, int64_t i) {
  if (view.dtype == DType::kI64) return load<int64_t>(view.data + i * 8);
  return static_cast<int64_t>(real_value(view, i));
}

template <typename T, typename Convert>
std::vector<T> convert(const TensorView& view, Convert value_of) {
  std::vector<T> values(static_cast<size_t>(view.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(value_of(view, static_cast<int64_t>(i)));
  }
  return values;
}

// The repository: where the program was built, unless the environment says it lies elsewhere.
std::string root() {
  const char* elsewhere = std::getenv("PEREGRINE_ROOT");
  return elsewhere != nullptr ? elsewhere : PEREGRINE_SOURCE_ROOT;
}

}  // namespace

std::string data_path(const std::string& relative) { return root() + "/tests/data/" + relative; }

std::string model_path(const std::string& relative) { return root() + "/models/" + relative; }

Fixture::Fixture(const std::string& path) : source_(TensorSource::open(path)) {}

bool Fixture::has(const std::string& name) const { return source_->find(name) != nullptr; }

const TensorView& Fixture::view(const std::string& name) const {
  const TensorView* view = source_->find(name);
  if (view == nullptr) {
    fail(ErrorKind::kInternal, "{}: has no tensor '{}'", source_->files().front(), name);
  }
  return *view;
}

std::vector<float> Fixture::floats(const std::string& name) const {
  return convert<float>(view(name), real_value);
}
std::vector<double> Fixture::doubles(const std::string& name) const {
  return convert<double>(view(name), real_value);
}
std::vector<int32_t> Fixture::ints(const std::string& name) const {
  return convert<int32_t>(view(name), integer_value);
}
std::vector<int64_t> Fixture::longs(const std::string& name) const {
  return convert<int64_t>(view(name), integer_value);
}
std::vector<uint8_t> Fixture::bytes(const std::string& name) const {
  const TensorView& tensor = view(name);
  const auto* first = reinterpret_cast<const uint8_t*>(tensor.data);
  return {first, first + tensor.bytes};
}

}  // namespace peregrine::test
