// Access to tests/data: expected tensors converted to plain vectors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace peregrine::test {

std::string data_path(const std::string& relative);   // under tests/data
std::string model_path(const std::string& relative);  // under models/

// The tensors of one safetensors file, converted element by element (F8/BF16/F64/ints/bool to the
// asked type; packed FP4 stays bytes).
class Fixture {
 public:
  explicit Fixture(const std::string& path);
  bool has(const std::string& name) const;
  const TensorView& view(const std::string& name) const;  // throws when absent
  std::vector<float> floats(const std::string& name) const;
  std::vector<double> doubles(const std::string& name) const;
  std::vector<int32_t> ints(const std::string& name) const;
  std::vector<int64_t> longs(const std::string& name) const;
  std::vector<uint8_t> bytes(const std::string& name) const;  // raw stored bytes
  const TensorSource& source() const { return *source_; }

 private:
  std::unique_ptr<TensorSource> source_;
};

}  // namespace peregrine::test
