// Reads tokenizer.json (spec: tokenizer.md section 2). Only `model` and `added_tokens` carry data;
// the other parts are compared with what this model family has.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/fail.h"
#include "text/byte_alphabet.h"
#include "text/json_text.h"
#include "text/tokenizer.h"

namespace peregrine {
namespace {

// Far above any vocabulary of this family; keeps a bad id from sizing a table.
constexpr int64_t kMaxTokens = 1 << 22;

constexpr std::string_view kSplitPatterns[] = {
    "\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"};

// Files differ in whether CR, LF and the quote are escaped inside a pattern.
std::string canonical_pattern(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '\\' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'r' || next == 'n' || next == '"') {
      out += next == 'r' ? '\r' : next == 'n' ? '\n' : '"';
      ++i;
    } else {
      out += pattern[i];
      if (next != '\0') out += pattern[++i];
    }
  }
  return out;
}

bool is_string(const JsonValue* value, std::string_view text) {
  return value && value->string() && *value->string() == text;
}
bool is_false(const JsonValue* value) { return value && value->boolean() && !*value->boolean(); }
bool absent_or_false(const JsonValue* value) {
  return !value || value->is_null() || is_false(value);
}

}  // namespace

class TokenizerBuilder {
 public:
  TokenizerBuilder(const JsonValue& file, const std::string& name) : file_(file), name_(name) {}

  Tokenizer build() {
    if (!file_.is_object()) bad("the file holds {}, expected an object", file_.kind_name());
    check_kind();
    read_vocabulary();
    read_added_tokens();
    lay_out();
    read_merges();
    return std::move(result_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kBadCheckpoint, "{}: {}", name_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  const JsonValue& member(const JsonValue& parent, std::string_view key) const {
    const JsonValue* value = parent.find(key);
    if (!value) bad("{} is missing", key);
    return *value;
  }

  void check_kind() const {
    if (const JsonValue* normalizer = file_.find_set("normalizer")) {
      const JsonValue* steps = normalizer->find("normalizers");
      if (!is_string(normalizer->find("type"), "Sequence") || !steps || !steps->array() ||
          !steps->array()->empty()) {
        bad("normalizer is {}, expected an empty sequence", normalizer->dump().substr(0, 100));
      }
    }
    check_pre_tokenizer(member(file_, "pre_tokenizer"));
    const JsonValue& decoder = member(file_, "decoder");
    if (!is_string(decoder.find("type"), "ByteLevel")) {
      bad("decoder is {}, expected ByteLevel", decoder.dump().substr(0, 100));
    }
    const JsonValue& model = member(file_, "model");
    if (!is_string(model.find("type"), "BPE")) {
      const JsonValue* type = model.find("type");
      bad("model.type is {}, expected \"BPE\"", type ? type->dump().substr(0, 100) : "missing");
    }
    for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix",
                            "end_of_word_suffix", "byte_fallback", "ignore_merges"}) {
      if (!absent_or_false(model.find(key))) {
        bad("model.{} is {}, expected null or false", key, model.find(key)->dump().substr(0, 100));
      }
    }
  }

  void check_pre_tokenizer(const JsonValue& pre) const {
    const JsonValue* list = pre.find("pretokenizers");
    const JsonValue::Array* steps = list ? list->array() : nullptr;
    constexpr size_t kSplits = std::size(kSplitPatterns);
    if (!steps || steps->size() != kSplits + 1) {
      bad("pre_tokenizer has {} steps, expected three splits and ByteLevel",
          steps ? steps->size() : 0);
    }
    for (size_t i = 0; i < kSplits; ++i) {
      const JsonValue& step = (*steps)[i];
      const JsonValue* pattern = step.find("pattern");
      const JsonValue* regex = pattern ? pattern->find("Regex") : nullptr;
      if (!is_string(step.find("type"), "Split") || !is_string(step.find("behavior"), "Isolated") ||
          !absent_or_false(step.find("invert")) || !regex || !regex->string() ||
          canonical_pattern(*regex->string()) != kSplitPatterns[i]) {
        bad("step {} of pre_tokenizer is {}, expected the isolated split that this model family "
            "uses",
            i, step.dump().substr(0, 200));
      }
    }
    const JsonValue& last = steps->back();
    if (!is_string(last.find("type"), "ByteLevel") || !is_false(last.find("add_prefix_space")) ||
        !is_false(last.find("use_regex"))) {
      bad("the last step of pre_tokenizer is {}, expected ByteLevel without prefix space and regex",
          last.dump().substr(0, 200));
    }
  }

  int32_t checked_id(const JsonValue& value, std::string_view spelling) const {
    const std::optional<int64_t> id = value.as_int64();
    if (!id || *id < 0 || *id >= kMaxTokens) {
      bad("token \"{}\" has id {}, expected an integer from 0 to {}", spelling,
          value.dump().substr(0, 40), kMaxTokens - 1);
    }
    return static_cast<int32_t>(*id);
  }

  void ensure_id(int32_t id) {
    if (static_cast<size_t>(id) >= result_.kinds_.size()) {
      result_.kinds_.resize(id + 1, Tokenizer::Kind::kMissing);
      texts_.resize(id + 1);
    }
  }

  void read_vocabulary() {
    const JsonValue& vocab = member(member(file_, "model"), "vocab");
    if (!vocab.object()) bad("model.vocab is {}, expected an object", vocab.kind_name());
    ids_.reserve(vocab.object()->size());
    for (const JsonMember& entry : *vocab.object()) {
      const int32_t id = checked_id(entry.value, entry.key);
      ensure_id(id);
      if (result_.kinds_[id] != Tokenizer::Kind::kMissing) {
        bad("tokens \"{}\" and \"{}\" of model.vocab share id {}", texts_[id], entry.key, id);
      }
      result_.kinds_[id] = Tokenizer::Kind::kOrdinary;
      texts_[id] = entry.key;
      ids_.emplace(entry.key, id);
    }
  }

  void read_added_tokens() {
    const JsonValue& added = member(file_, "added_tokens");
    if (!added.array()) bad("added_tokens is {}, expected an array", added.kind_name());
    for (const JsonValue& entry : *added.array()) {
      const JsonValue* content = entry.find("content");
      const JsonValue* id_value = entry.find("id");
      if (!content || !content->string() || content->string()->empty() || !id_value) {
        bad("entry {} of added_tokens needs an id and a content that is not empty",
            &entry - added.array()->data());
      }
      const std::string& spelling = *content->string();
      for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
        if (!absent_or_false(entry.find(flag))) {
          bad("added token \"{}\" sets {}, which this model family never does", spelling, flag);
        }
      }
      add_token(spelling, checked_id(*id_value, spelling));
    }
  }

  void add_token(const std::string& spelling, int32_t id) {
    ensure_id(id);
    Tokenizer::Kind& kind = result_.kinds_[id];
    if (kind == Tokenizer::Kind::kAdded ||
        (kind == Tokenizer::Kind::kOrdinary && texts_[id] != spelling)) {
      bad("added token \"{}\" has id {}, which \"{}\" has already", spelling, id, texts_[id]);
    }
    if (!result_.added_.emplace(spelling, id).second) {
      bad("added token \"{}\" appears twice, as {} and {}", spelling, result_.added_[spelling], id);
    }
    kind = Tokenizer::Kind::kAdded;
    texts_[id] = spelling;
    auto& lengths = result_.added_lengths_[static_cast<uint8_t>(spelling[0])];
    const auto place =
        std::lower_bound(lengths.begin(), lengths.end(), spelling.size(), std::greater<>());
    if (place == lengths.end() || *place != spelling.size()) {
      lengths.insert(place, spelling.size());
    }
  }

  // Turns spellings into raw bytes, one buffer for all, and finds the tokens of the single bytes.
  void lay_out() {
    result_.byte_ids_.fill(-1);
    result_.offsets_.push_back(0);
    for (size_t id = 0; id < texts_.size(); ++id) {
      if (result_.kinds_[id] == Tokenizer::Kind::kOrdinary) {
        const std::optional<std::string> bytes = from_byte_alphabet(texts_[id]);
        if (!bytes || bytes->empty()) {
          bad("token {} of model.vocab, \"{}\", is neither byte-level text nor an added token", id,
              texts_[id]);
        }
        if (bytes->size() == 1) {
          result_.byte_ids_[static_cast<uint8_t>((*bytes)[0])] = static_cast<int32_t>(id);
        }
        result_.bytes_ += *bytes;
      } else if (result_.kinds_[id] == Tokenizer::Kind::kAdded) {
        result_.bytes_ += texts_[id];
      }
      result_.offsets_.push_back(result_.bytes_.size());
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (result_.byte_ids_[byte] < 0) bad("model.vocab has no token for the byte {:#04x}", byte);
    }
  }

  // `guess` saves the look-up where merges come in the order of the ids they make.
  int32_t merge_part(const std::string& text, size_t rank, int32_t guess = -1) const {
    if (guess >= 0 && static_cast<size_t>(guess) < texts_.size() && texts_[guess] == text) {
      return guess;
    }
    const auto it = ids_.find(text);
    if (it == ids_.end()) bad("merge {} names \"{}\", which model.vocab lacks", rank, text);
    return it->second;
  }

  void read_merges() {
    const JsonValue* merges = member(file_, "model").find("merges");
    if (!merges || !merges->array() || merges->array()->empty()) {
      bad("model.merges is {}, expected a list of pairs", !merges           ? "missing"
                                                          : merges->array() ? "empty"
                                                                            : merges->kind_name());
    }
    result_.merges_ = PairMerges(merges->array()->size());
    std::string left, right;
    int32_t result_id = -1;
    for (size_t rank = 0; rank < merges->array()->size(); ++rank) {
      split_merge((*merges->array())[rank], rank, left, right);
      const int32_t left_id = merge_part(left, rank);
      const int32_t right_id = merge_part(right, rank);
      result_id = merge_part(left + right, rank, result_id + 1);
      if (!result_.merges_.add(left_id, right_id, static_cast<int32_t>(rank), result_id)) {
        bad("merge {} repeats the pair \"{}\" \"{}\"", rank, left, right);
      }
    }
  }

  // A merge is one string with a space between the halves, or a list of the two.
  void split_merge(const JsonValue& merge, size_t rank, std::string& left,
                   std::string& right) const {
    if (const std::string* text = merge.string()) {
      const size_t space = text->find(' ');
      if (space != text->npos && text->find(' ', space + 1) == text->npos) {
        left.assign(*text, 0, space);
        right.assign(*text, space + 1);
        return;
      }
    } else if (const auto* parts = merge.array();
               parts && parts->size() == 2 && (*parts)[0].string() && (*parts)[1].string()) {
      left = *(*parts)[0].string();
      right = *(*parts)[1].string();
      return;
    }
    bad("merge {} is {}, expected two tokens", rank, merge.dump().substr(0, 100));
  }

  const JsonValue& file_;
  const std::string& name_;
  Tokenizer result_;
  std::vector<std::string> texts_;                     // by id, as spelled in the file
  std::unordered_map<std::string_view, int32_t> ids_;  // of model.vocab; keys lie in file_
};

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& name_for_errors) {
  const JsonParse parsed = parse_json(json);
  if (!parsed.value) {
    fail(ErrorKind::kBadCheckpoint, "{}: not JSON, {}", name_for_errors, parsed.problem);
  }
  return TokenizerBuilder(*parsed.value, name_for_errors).build();
}

Tokenizer Tokenizer::load(const std::string& path) {
  std::error_code ignored;
  const std::string file =
      std::filesystem::is_directory(path, ignored) ? path + "/tokenizer.json" : path;
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) fail(ErrorKind::kIo, "{}: cannot open the tokenizer", file);
  std::string text(static_cast<size_t>(std::max<std::streamoff>(in.tellg(), 0)), '\0');
  in.seekg(0);
  if (!in.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    fail(ErrorKind::kIo, "{}: cannot read the tokenizer", file);
  }
  return from_json(text, file);
}

}  // namespace peregrine
