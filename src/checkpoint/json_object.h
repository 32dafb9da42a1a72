// One JSON object of a configuration, read key by key. Remembers which keys were asked for, so that
// finish() can refuse the ones nobody knows. Every refusal is an Error(kBadCheckpoint) naming the
// file, the key, the value found and what is allowed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace peregrine {

class JsonObject {
 public:
  // `prefix` is put before key names in messages ("text_config."). `object` must outlive this.
  JsonObject(const nlohmann::json& object, std::string file, std::string prefix);

  bool has(const std::string& key) const { return object_.contains(key); }

  // A required integer in [low, high]. 6.0 is not an integer here.
  int64_t integer(const std::string& key, int64_t low, int64_t high);
  // A required finite number in [low, high].
  double number(const std::string& key, double low,
                double high = std::numeric_limits<double>::max());
  bool boolean(const std::string& key);
  // A required string that is one of `allowed`.
  std::string text(const std::string& key, std::initializer_list<std::string_view> allowed);
  // A required array of integers in [low, high], at most kMaxArray of them.
  std::vector<int64_t> integers(const std::string& key, int64_t low, int64_t high);
  // A required object; read it with a JsonObject of its own.
  const nlohmann::json& object(const std::string& key);
  const nlohmann::json& value(const std::string& key);  // required, of any type

  // Keys that are known and have no effect here; they may be absent.
  void ignore(std::initializer_list<std::string_view> keys);
  // Refuses every key that was neither read nor ignored.
  void finish() const;

  // Refuses the value of `key` with what was expected.
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;

  static constexpr size_t kMaxArray = 65536;

 private:
  const nlohmann::json& object_;
  std::string file_, prefix_;
  std::set<std::string, std::less<>> known_;
};

// Parses a document that must be one object, without repeated keys at any level.
nlohmann::json parse_json_object(std::string_view text, const std::string& name_for_errors);

}  // namespace peregrine
