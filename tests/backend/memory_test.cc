// Memory of a backend, and the factory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "peregrine/error.h"
#include "support/backend_rig.h"
#include "support/test_backends.h"

namespace peregrine::test {
namespace {

class Memory : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend() const {
    return make_test_backend(GetParam(), kernel_config(), Numerics::kBF16);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, Memory, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

TEST_P(Memory, IsZeroedAndAligned) {
  const auto backend = this->backend();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{300}, size_t{3} << 20}) {
    void* data = backend->allocate(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u) << bytes;
    std::vector<uint8_t> host(bytes, 1);
    backend->copy_out(host.data(), data, bytes);
    EXPECT_EQ(host, std::vector<uint8_t>(bytes));
    backend->release(data);
  }
}

TEST_P(Memory, CopiesComeBack) {
  const auto backend = this->backend();
  const std::vector<uint8_t> sent = {1, 2, 3, 250};
  void* first = backend->allocate(sent.size());
  void* second = backend->allocate(sent.size());
  backend->copy_in(first, sent.data(), sent.size());
  backend->copy(Tensor{first, 1, 4, Elem::kU8}, Tensor{second, 1, 4, Elem::kU8});
  std::vector<uint8_t> received(sent.size());
  backend->copy_out(received.data(), second, received.size());
  EXPECT_EQ(received, sent);
  backend->release(first);
  backend->release(second);
}

// More than the machine has, but little of it touched.
TEST_P(Memory, UntouchedPagesCostNothing) {
  if (GetParam().starts_with("cuda")) GTEST_SKIP() << "device memory is taken when asked for";
  const auto backend = this->backend();
  constexpr size_t kBytes = size_t{1} << 40;  // ThreadSanitizer has no addresses for more
  void* data = backend->allocate(kBytes);
  const uint8_t one = 1;
  uint8_t read = 0;
  void* last = static_cast<std::byte*>(data) + kBytes - 1;
  backend->copy_in(last, &one, 1);
  backend->copy_out(&read, last, 1);
  EXPECT_EQ(read, 1);
  backend->release(data);
}

TEST_P(Memory, ExhaustionNamesTheBytesAsked) {
  const auto backend = this->backend();
  const size_t bytes = size_t{1} << 60;
  try {
    backend->allocate(bytes);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos)
        << error.what();
  }
}

// Places at the beginning, in the middle and at the end of what is looked at in runs.
TEST_P(Memory, ScalesThatKernelsCannotUseAreRefusedWithTheirPlace) {
  const bool tensor_cores = GetParam().starts_with("cuda");
  for (const size_t place : {size_t{0}, size_t{300}, size_t{1029}}) {
    for (const int code : {0, 1, 63, 64, 190, 191, 254}) {
      SCOPED_TRACE(fmt::format("code {} at {}", code, place));
      std::vector<uint8_t> codes(1030, 127);
      codes[place] = static_cast<uint8_t>(code);
      const bool refused = tensor_cores && code != 0 && (code < 64 || code > 190);
      try {
        backend()->adopt_scales("layers.3.wq.scale", codes.data(), codes.size());
        EXPECT_FALSE(refused);
      } catch (const Error& error) {
        EXPECT_TRUE(refused) << error.what();
        EXPECT_EQ(error.kind(), ErrorKind::kBadCheckpoint);
        const std::string message = error.what();
        for (const std::string& part : {std::string("'layers.3.wq.scale'"),
                                        fmt::format("2^{} at its byte {},", code - 127, place)})
          EXPECT_NE(message.find(part), std::string::npos) << message;
      }
    }
  }
  const std::vector<uint8_t> codes(64, 254);
  EXPECT_NO_THROW(make_test_backend(GetParam(), kernel_config(), Numerics::kF32)
                      ->adopt_scales("scale", codes.data(), codes.size()));
}

TEST(MakeBackend, UnknownDeviceIsNamedWithTheKnownOnes) {
  try {
    make_backend("abacus", kernel_config(), Numerics::kF32);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    const std::string message = error.what();
    EXPECT_NE(message.find("'abacus'"), std::string::npos) << message;
    EXPECT_NE(message.find("reference"), std::string::npos) << message;
  }
}

TEST(MakeBackend, BackendsSayWhatTheyAre) {
  for (const std::string& device : test_devices()) {
    const auto backend = make_backend(device, kernel_config(), Numerics::kBF16);
    EXPECT_EQ(backend->name().substr(0, device.size()), device);
    EXPECT_EQ(backend->numerics(), Numerics::kBF16);
  }
}

}  // namespace
}  // namespace peregrine::test
