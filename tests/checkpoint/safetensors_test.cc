#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/temporary_directory.h"
#include "peregrine/error.h"
#include "support/fixtures.h"

namespace peregrine {
namespace {

using test::Fixture;
using test::TemporaryDirectory;

std::string file_of(std::string_view header, size_t data_bytes, uint64_t stated_length) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(stated_length >> (8 * i));
  return file.append(header).append(data_bytes, '\0');
}

std::string file_of(std::string_view header, size_t data_bytes) {
  return file_of(header, data_bytes, header.size());
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  uint64_t begin, uint64_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

template <typename Call>
std::string message_of(Call call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

TensorView view_of(const std::string& name, DType dtype, std::vector<int64_t> shape,
                   const std::string& bytes) {
  TensorView view;
  view.name = name;
  view.dtype = dtype;
  view.shape = std::move(shape);
  view.data = reinterpret_cast<const std::byte*>(bytes.data());
  view.bytes = bytes.size();
  return view;
}

TEST(Fixtures, ConvertsStoredTypes) {
  const Fixture expected(test::data_path("backbone_fp32/expected.safetensors"));
  EXPECT_EQ(expected.ints("long.tokens").size(), 65u);
  EXPECT_EQ(expected.view("fixed.long.decode.logits").shape_text(), "[24, 256]");
  const std::vector<float> logits = expected.floats("fixed.long.decode.logits");
  const std::vector<double> wide = expected.doubles("fixed.long.decode.logits");
  ASSERT_EQ(logits.size(), 24u * 256u);
  EXPECT_EQ(static_cast<double>(logits[7]), wide[7]);
  EXPECT_FALSE(expected.has("no such tensor"));
  EXPECT_EQ(expected.bytes("long.tokens").size(), 260u);
}

TEST(Safetensors, ReadsShapesTypesAndPlaces) {
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "F4", "[2,4]", 6, 10) + "," +
      entry("a", "BF16", "[3]", 0, 6) + "," + entry("empty", "F32", "[0,7]", 6, 6) + "}";
  const std::string file = file_of(header, 10);
  const std::vector<TensorView> views = parse_safetensors(file, "f");
  ASSERT_EQ(views.size(), 3u);
  EXPECT_EQ(views[0].name, "a");
  EXPECT_EQ(views[0].dtype, DType::kBF16);
  EXPECT_EQ(reinterpret_cast<const char*>(views[0].data), file.data() + 8 + header.size());
  EXPECT_EQ(views[1].name, "empty");
  EXPECT_EQ(views[1].elements(), 0);
  EXPECT_EQ(views[2].shape_text(), "[2, 4]");
  EXPECT_EQ(views[2].bytes, 4u);
  EXPECT_EQ(views[2].elements(), 8);
}

struct Defect {
  const char* name;
  std::string file;
  const char* sentence;
};

TEST(Safetensors, RefusesEveryDefectWithASentence) {
  const std::string good = entry("a", "U8", "[4]", 0, 4);
  const Defect defects[] = {
      {"short", std::string("\1\2\3"), "has 3 bytes, too few"},
      {"long header", file_of("{}", 0, 1ull << 60), "states a header of 1152921504606846976 bytes"},
      {"not json", file_of("{\"a\":", 0), "not valid JSON"},
      {"array", file_of("[]", 0), "the header is an array, expected a JSON object"},
      {"number", file_of("7", 0), "the header is a number, expected a JSON object"},
      {"entry", file_of("{\"a\":3}", 0), "header entry 'a' is a number, expected an object"},
      {"no dtype", file_of(R"({"a":{"shape":[],"data_offsets":[0,0]}})", 0), "'a' has no dtype"},
      {"no shape", file_of(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0), "has no shape"},
      {"no offsets", file_of(R"({"a":{"dtype":"U8","shape":[]}})", 0), "has no data_offsets"},
      {"extra field", file_of(R"({"a":{"dtype":"U8","x":"y"}})", 0), "holds a string under 'x'"},
      {"one offset", file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0]}})", 0),
       "data_offsets that are not two numbers"},
      {"three offsets", file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]}})", 0),
       "data_offsets that are not two numbers"},
      {"dtype", file_of("{" + entry("a", "F7", "[4]", 0, 4) + "}", 4), "the unknown dtype 'F7'"},
      {"twice", file_of("{" + good + "," + entry("a", "U8", "[2]", 4, 6) + "}", 6),
       "'a' is described twice"},
      {"repeated field", file_of(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0), "its dtype twice"},
      {"truncated", file_of("{" + good + "}", 3), "do not lie inside the 3 data bytes"},
      {"backwards", file_of("{" + entry("a", "U8", "[4]", 4, 0) + "}", 4), "offsets 4 to 0"},
      {"overlap", file_of("{" + good + "," + entry("b", "U8", "[4]", 3, 7) + "}", 7),
       "'b' begins at data byte 3 and overlaps"},
      {"hole", file_of("{" + good + "," + entry("b", "U8", "[4]", 5, 9) + "}", 9),
       "1 data bytes before tensor 'b' belong to no tensor"},
      {"tail", file_of("{" + good + "}", 6), "the last 2 bytes belong to no tensor"},
      {"size", file_of("{" + entry("a", "F32", "[2]", 0, 4) + "}", 4), "has 4 bytes of data"},
      {"negative", file_of("{" + entry("a", "U8", "[-4]", 0, 4) + "}", 4), "has -4 in its shape"},
      {"fraction", file_of("{" + entry("a", "U8", "[4.5]", 0, 4) + "}", 4), "the number 4.5"},
      {"overflow", file_of("{" + entry("a", "U8", "[4294967296,4294967296,2]", 0, 4) + "}", 4),
       "size overflows 64 bits"},
      {"side", file_of("{" + entry("a", "U8", "[18446744073709551615]", 0, 4) + "}", 4),
       "expected less than 2^63"},
      {"odd F4", file_of("{" + entry("a", "F4", "[3]", 0, 1) + "}", 1), "odd number of F4 values"},
      {"depth", file_of("{\"a\":" + std::string(100000, '['), 0),
       "'a' is an array, expected an object"},
  };
  for (const Defect& defect : defects) {
    SCOPED_TRACE(defect.name);
    const std::string message =
        message_of([&] { parse_safetensors(defect.file, "model.bin"); }, ErrorKind::kBadCheckpoint);
    EXPECT_NE(message.find(defect.sentence), std::string::npos) << message;
    EXPECT_EQ(message.find("model.bin: "), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Safetensors, ReadsWhatItWrote) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("t.safetensors");
  constexpr DType kTypes[] = {DType::kF64,    DType::kF32,    DType::kF16, DType::kBF16,
                              DType::kF8E4M3, DType::kF8E8M0, DType::kF4,  DType::kI64,
                              DType::kI32,    DType::kI16,    DType::kI8,  DType::kU8,
                              DType::kBool};
  const bool holds = rc::check("a written file reads back", [&] {
    const auto names = *rc::gen::unique<std::vector<std::string>>(
        rc::gen::container<std::string>(rc::gen::inRange<char>(32, 127)));
    std::map<std::string, std::string> data;
    std::vector<TensorView> views;
    for (const std::string& name : names) {
      if (name == "__metadata__") continue;
      const DType dtype = kTypes[*rc::gen::inRange<size_t>(0, std::size(kTypes))];
      const auto rows = *rc::gen::inRange<int64_t>(0, 5);
      const int64_t columns = 2 * *rc::gen::inRange<int64_t>(0, 4);
      std::string& bytes = data[name];
      bytes.resize(static_cast<size_t>(rows * columns * dtype_bits(dtype) / 8));
      std::generate(bytes.begin(), bytes.end(),
                    [n = 0]() mutable { return static_cast<char>(++n); });
      views.push_back(view_of(name, dtype, {rows, columns}, bytes));
    }
    write_safetensors(path, views);
    const auto source = TensorSource::open(path);
    RC_ASSERT(source->tensors().size() == views.size());
    for (const TensorView& view : views) {
      const TensorView* read = source->find(view.name);
      RC_ASSERT(read != nullptr);
      RC_ASSERT(read->dtype == view.dtype);
      RC_ASSERT(read->shape == view.shape);
      RC_ASSERT(read->bytes == view.bytes);
      RC_ASSERT(view.bytes == 0 || std::memcmp(read->data, view.data, view.bytes) == 0);
    }
  });
  EXPECT_TRUE(holds);
}

TEST(Safetensors, WriterAlignsDataAndKeepsOrder) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("t.safetensors");
  const std::string bytes(8, 'x');
  write_safetensors(path, std::vector{view_of("z", DType::kU8, {8}, bytes),
                                      view_of("a", DType::kI64, {1}, bytes)});
  const auto source = TensorSource::open(path);
  EXPECT_LT(source->find("z")->data, source->find("a")->data);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(source->find("z")->data) % 8, 0u);
}

TEST(Safetensors, WriterFailsWithoutLeavingAFile) {
  const TemporaryDirectory directory;
  const std::string bytes(4, 'x');
  const std::vector<TensorView> tensors = {view_of("a", DType::kU8, {4}, bytes)};
  EXPECT_NE(message_of([&] { write_safetensors(directory.file("no/t"), tensors); }, ErrorKind::kIo)
                .find("cannot be created (No such file or directory)"),
            std::string::npos);
  // A directory of that name makes the last step, the rename, fail.
  ASSERT_EQ(::mkdir(directory.file("taken").c_str(), 0755), 0);
  EXPECT_NE(message_of([&] { write_safetensors(directory.file("taken"), tensors); }, ErrorKind::kIo)
                .find("cannot be put in place"),
            std::string::npos);
  const std::vector<TensorView> wrong = {view_of("a", DType::kF32, {2}, bytes)};
  EXPECT_NE(message_of([&] { write_safetensors(directory.file("t"), wrong); },
                       ErrorKind::kInvalidArgument)
                .find("was given 4 bytes"),
            std::string::npos);
  const std::filesystem::directory_iterator entries(directory.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

// A limit on the size of files stands for a disk that is full.
TEST(Safetensors, WriterReportsAFullDisk) {
  const TemporaryDirectory directory;
  const std::string bytes(1 << 20, 'x');
  const std::vector<TensorView> tensors = {view_of("a", DType::kU8, {1 << 20}, bytes)};
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message =
      message_of([&] { write_safetensors(directory.file("t"), tensors); }, ErrorKind::kIo);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_NE(message.find("cannot be written"), std::string::npos) << message;
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// Two shards and an index over them.
class ShardedTest : public testing::Test {
 protected:
  void SetUp() override {
    write_safetensors(directory_.file("one.safetensors"),
                      std::vector{view_of("a", DType::kU8, {4}, bytes_)});
    write_safetensors(directory_.file("two.safetensors"),
                      std::vector{view_of("b", DType::kU8, {4}, bytes_)});
  }
  void write_index(const std::string& map) const {
    directory_.write("model.safetensors.index.json", R"({"weight_map":)" + map + "}");
  }
  std::string open_error(ErrorKind kind = ErrorKind::kBadCheckpoint) const {
    return message_of([&] { TensorSource::open(directory_.path()); }, kind);
  }
  void expect_refused(const std::string& map, const char* sentence,
                      ErrorKind kind = ErrorKind::kBadCheckpoint) const {
    write_index(map);
    const std::string message = open_error(kind);
    EXPECT_NE(message.find(sentence), std::string::npos) << message;
  }

  const TemporaryDirectory directory_;
  const std::string bytes_ = "abcd";
};

TEST_F(ShardedTest, FollowsTheIndex) {
  write_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  const auto source = TensorSource::open(directory_.path());
  ASSERT_EQ(source->files().size(), 2u);
  ASSERT_EQ(source->tensors().size(), 2u);
  EXPECT_EQ(source->files()[source->find("b")->shard], directory_.file("two.safetensors"));
  EXPECT_EQ(source->total_bytes(), 8u);
  EXPECT_EQ(source->find("c"), nullptr);
}

TEST_F(ShardedTest, RefusesWhatDoesNotFitTheIndex) {
  expect_refused(R"({"a":"one.safetensors","b":"three.safetensors"})", "cannot be opened",
                 ErrorKind::kIo);
  expect_refused(R"({"a":"one.safetensors","b":"one.safetensors"})", "does not hold tensor 'b'");
  expect_refused(R"({"a":"one.safetensors","c":"two.safetensors"})", "tensor");
  expect_refused(R"({"a":"../one.safetensors"})", "expected a plain file name");
  expect_refused(R"({"a":3})", "maps to number");
  expect_refused(R"([])", "has no weight_map");
  write_safetensors(
      directory_.file("two.safetensors"),
      std::vector{view_of("a", DType::kU8, {4}, bytes_), view_of("b", DType::kU8, {4}, bytes_)});
  expect_refused(R"({"a":"one.safetensors","b":"two.safetensors"})", "is in both");
  directory_.write("model.safetensors.index.json", "{");
  EXPECT_NE(open_error().find("not valid JSON"), std::string::npos);
}

TEST_F(ShardedTest, RefusesUnlistedTensors) {
  write_safetensors(directory_.file("two.safetensors"),
                    std::vector{view_of("b", DType::kU8, {4}, bytes_),
                                view_of("extra", DType::kU8, {4}, bytes_)});
  expect_refused(R"({"a":"one.safetensors","b":"two.safetensors"})", "holds tensor 'extra'");
}

TEST_F(ShardedTest, RefusesADirectoryWithoutWeights) {
  const std::string message = open_error(ErrorKind::kIo);
  EXPECT_NE(message.find("holds neither"), std::string::npos) << message;
}

// The released model spreads this many tensors over 48 shards; one file must do as well.
TEST(Safetensors, ParsesALargeHeader) {
  std::string header = "{";
  constexpr int kTensors = 96085;
  for (int i = 0; i < kTensors; ++i) {
    if (i > 0) header += ",";
    header +=
        entry("layers.0.ffn.experts." + std::to_string(i) + ".w1.weight", "U8", "[1]", i, i + 1);
  }
  header += "}";
  EXPECT_EQ(parse_safetensors(file_of(header, kTensors), "f").size(), size_t{kTensors});
}

}  // namespace
}  // namespace peregrine
