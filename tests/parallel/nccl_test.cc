// The NCCL communicator with one rank, on a machine with a GPU: the calls, the order of the stream
// and the kernel that adds. Several ranks need as many GPUs.
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "parallel/nccl_communicator.h"
#include "parallel/nccl_sum.h"
#include "peregrine/error.h"

namespace peregrine::test {
namespace {

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU here";
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
  }
  void TearDown() override {
    if (stream_) cudaStreamDestroy(stream_);
    for (void* data : owned_) cudaFree(data);
  }

  float* device(const std::vector<float>& values) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, values.size() * sizeof(float)), cudaSuccess);
    owned_.push_back(data);
    cudaMemcpy(data, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice);
    return static_cast<float*>(data);
  }
  std::vector<float> host(const float* data, size_t n) {
    std::vector<float> values(n);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    cudaMemcpy(values.data(), data, n * sizeof(float), cudaMemcpyDeviceToHost);
    return values;
  }

  cudaStream_t stream_ = nullptr;
  std::vector<void*> owned_;
};

TEST_F(Nccl, OneRankKeepsItsValues) {
  NcclCommunicator one(NcclCommunicator::make_id(), 0, 1, stream_);
  const std::vector<float> values = {1.5f, -2.25f, 1e-30f, 3e30f};
  float* mine = device(values);
  float* out = device({0, 0, 0, 0});
  one.all_gather(mine, 4 * sizeof(float), out);
  EXPECT_EQ(host(out, 4), values);
  float* in = device({0, 0, 0, 0});
  one.all_to_all(mine, 4 * sizeof(float), in);
  EXPECT_EQ(host(in, 4), values);
  one.reserve_sums(4);
  one.all_reduce_sum(mine, 4);
  EXPECT_EQ(host(mine, 4), values);
  one.check();
}

// Four ranks' values as a gather leaves them. In another order these sums come out differently.
TEST_F(Nccl, SumsAddInRankOrder) {
  constexpr size_t kCount = 1000;
  std::vector<float> all(4 * kCount), expected(kCount);
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = (i % 7 == 0 ? 1e7f : 0.3f) * static_cast<float>(static_cast<int>(i % 11) - 5);
  for (size_t i = 0; i < kCount; ++i)
    expected[i] = ((0.0f + all[i]) + all[kCount + i] + all[2 * kCount + i]) + all[3 * kCount + i];
  float* out = device(expected);
  cudaMemset(out, 0, kCount * sizeof(float));
  sum_in_rank_order(device(all), 4, kCount, out, stream_);
  EXPECT_EQ(host(out, kCount), expected);
}

TEST_F(Nccl, RefusesAnIdOfAnotherSize) {
  const std::vector<std::byte> id(3);
  EXPECT_THROW(NcclCommunicator(id, 0, 1, stream_), Error);
}

}  // namespace
}  // namespace peregrine::test
