// Whatever a user gets wrong: one sentence on standard error and exit code 1.
#include <functional>
#include <nlohmann/json.hpp>

#include "program.h"

namespace peregrine::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

ProgramResult generate(std::vector<std::string> arguments, const std::string& input = {}) {
  arguments.insert(arguments.begin(), {"generate", "--max-tokens", "4"});
  return run_program(std::move(arguments), input);
}

TEST(BadInput, EmptyPrompt) {
  expect_refused(generate({""}), "empty prompt");
  expect_refused(generate({}, "\n"), "empty prompt");
  expect_refused(generate({"--chat", ""}), "empty prompt");
}

TEST(BadInput, PromptLongerThanTheContext) {
  expect_refused(generate({"--context", "8", "one two three four five six seven eight nine ten"}),
                 "the context holds 8");
}

TEST(BadInput, OutputThatCannotBeWritten) {
  for (const Stdout output : {Stdout::kFull, Stdout::kClosed, Stdout::kClosedPipe}) {
    expect_refused(run_program(ProgramRun{.arguments = {"generate", "--max-tokens", "8", "Once"},
                                          .output = output}),
                   "standard output cannot be written");
    expect_refused(run_program(ProgramRun{.arguments = {"tokenize", "Once"}, .output = output}),
                   "standard output cannot be written");
  }
}

TEST(BadInput, Options) {
  expect_refused(generate({"--device", "abacus", "x"}), "abacus");
  expect_refused(generate({"--temperature", "3", "x"}), "temperature");
  expect_refused(generate({"--top-p", "0", "x"}), "top");
  expect_refused(generate({"--draft", "17", "x"}), "--draft 17");
  expect_refused(generate({"--draft", "many", "x"}), "--draft many");
  expect_refused(generate({"--draft-threshold", "2", "x"}), "--draft-threshold 2");
  expect_refused(generate({"--verify", "hope", "x"}), "hope");
  expect_refused(run_program({"generate", "--max-tokens", "0", "x"}), "--max-tokens 0");
  expect_refused(generate({"--chat", "--thinking=101", "x"}), "101");
  expect_refused(generate({"--thinking", "x"}), "--chat");
  expect_refused(generate({"--raw", "--chat", "x"}), "--raw and --chat");
  expect_refused(generate({"--logprobs", "2", "x"}), "--json");
  expect_refused(generate({"--json", "--logprobs", "99", "x"}), "logprobs");
  expect_refused(generate({"--file", "/nonexistent", "x"}), "--file");
  expect_refused(generate({"--file", "/nonexistent"}), "/nonexistent");
  expect_refused(generate({"--context", "99999999", "x"}), "99999999");
  expect_refused(generate({"--prefill-chunk", "-1", "x"}), "-1");
  expect_refused(run_program({"generate", "--no-such-option"}), "--no-such-option");
  expect_refused(run_program(std::vector<std::string>{}), "subcommand");
  expect_refused(run_program({"bench", "speculation"}), "--prompts");
  expect_refused(run_program({"bench", "decode", "--synthetic", "--layers", "1"}), "layers");
}

TEST(BadInput, OutOfMemory) {
  expect_refused(run_program({"bench", "decode", "--synthetic", "--dim", "1048576"}), "memory");
}

// A copy of models/tiny whose files can be damaged.
class DamagedModel : public testing::Test {
 protected:
  DamagedModel() {
    for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"})
      fs::copy_file(fs::path(kTiny) / name, folder_.path() / name);
  }
  void edit_config(const std::function<void(Json&)>& edit) {
    std::ifstream in(folder_.path() / "config.json");
    Json config = Json::parse(in);
    edit(config);
    folder_.file("config.json", config.dump());
  }
  // Replaces the header of the tensor file; its data stay where they are.
  void edit_header(const std::function<void(Json&)>& edit) {
    const fs::path path = folder_.path() / "model.safetensors";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), 8);
    std::string text(length, ' ');
    file.read(text.data(), static_cast<std::streamsize>(length));
    Json header = Json::parse(text);
    edit(header);
    std::string edited = header.dump();
    ASSERT_LE(edited.size(), length);
    edited.resize(length, ' ');
    file.seekp(8);
    file.write(edited.data(), static_cast<std::streamsize>(length));
  }
  void write_bytes(int64_t offset, const std::string& bytes) {
    std::fstream file(folder_.path() / "model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  void expect(const std::string& words) {
    expect_refused(
        run_program({"generate", "--model", folder_.path().string(), "--max-tokens", "2", "x"}),
        words);
  }
  TempFolder folder_;
};

TEST_F(DamagedModel, IsFineAsLongAsNothingIsDamaged) {
  EXPECT_EQ(
      run_program({"generate", "--model", folder_.path().string(), "--max-tokens", "2", "x"}).code,
      0);
}

TEST_F(DamagedModel, TruncatedFile) {
  fs::resize_file(folder_.path() / "model.safetensors", 10'000'000);
  expect("model.safetensors");
}

TEST_F(DamagedModel, HeaderLongerThanTheFile) {
  write_bytes(0, std::string("\xff\xff\xff\xff\x00\x00\x00\x00", 8));
  expect("header");
}

TEST_F(DamagedModel, OverlappingOffsets) {
  edit_header([](Json& h) {
    for (Json& offset : h["layers.1.attn.attn_sink"]["data_offsets"])
      offset = offset.get<int64_t>() - 4;
  });
  expect("overlap");
}

TEST_F(DamagedModel, OffsetsBeyondTheFile) {
  edit_header([](Json& h) {
    const int64_t begin = 90'000'000;
    h["norm.weight"]["data_offsets"] = {begin, begin + 512};
  });
  expect("norm.weight");
}

TEST_F(DamagedModel, WrongType) {
  edit_header([](Json& h) { h["norm.weight"]["dtype"] = "F16"; });
  expect("norm.weight");
}

TEST_F(DamagedModel, MissingTensor) {
  edit_header([](Json& h) {
    h["extra"] = h["norm.weight"];
    h.erase("norm.weight");
  });
  expect("norm.weight");
}

TEST_F(DamagedModel, ExtraLayer) {
  edit_config([](Json& c) {
    c["text_config"]["num_hidden_layers"] = 9;
    auto& ratios = c["text_config"]["compress_ratios"];
    ratios.erase(9);
    c["text_config"]["dspark_target_layer_ids"] = {6, 7, 8};
  });
  expect("layers.9.");
}

TEST_F(DamagedModel, UnknownScoreFunction) {
  edit_config([](Json& c) { c["text_config"]["scoring_func"] = "vibes"; });
  expect("vibes");
}

TEST_F(DamagedModel, NanScale) {
  std::ifstream in(fs::path(kTiny) / "model.safetensors", std::ios::binary);
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), 8);
  std::string text(length, ' ');
  in.read(text.data(), static_cast<std::streamsize>(length));
  const int64_t at = Json::parse(text)["layers.3.attn.wq_a.scale"]["data_offsets"][0];
  write_bytes(8 + static_cast<int64_t>(length) + at, "\xff");
  expect("layers.3.attn.wq_a.scale");
}

TEST_F(DamagedModel, TokenizerWithoutMerges) {
  std::ifstream in(folder_.path() / "tokenizer.json");
  Json tokenizer = Json::parse(in);
  tokenizer["model"].erase("merges");
  folder_.file("tokenizer.json", tokenizer.dump());
  expect("merges");
}

TEST_F(DamagedModel, MissingFolder) {
  expect_refused(run_program({"generate", "--model", "/nonexistent", "x"}), "/nonexistent");
}

}  // namespace
}  // namespace peregrine::test
