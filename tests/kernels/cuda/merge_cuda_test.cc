// SPDX-License-Identifier: Apache-2.0
// The GPU side: its libraries link and load, the law of one row holds on the host, and the kernel agrees with the CPU's
// Merge where there is a device.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/merge.h"
#include "kernels/cuda/merge_law.h"

namespace kvring::cuda {
namespace {

// The storage of a partial with its view. Every third row is empty, with an absurd m that must not decide anything.
struct Sample {
  std::vector<float> storage;
  SoftmaxPartial view;

  Sample(int64_t rows, int64_t dv, uint32_t seed) : storage(PartialFloats(rows, dv)) {
    view = PartialAt(storage.data(), rows, dv);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < rows; ++r) {
      const bool empty = (r + seed) % 3 == 0;
      view.m[r] = empty ? 1e30f : 20.0f * normal(random);
      view.l[r] = empty ? 0.0f : 1.0f + std::abs(normal(random));
      for (int64_t i = 0; i < dv; ++i) view.o[r * dv + i] = empty ? 0.0f : normal(random);
    }
  }
  Sample(const Sample& other) : storage(other.storage) {
    view = PartialAt(storage.data(), other.view.rows, other.view.dv);
  }
};

TEST(CudaLibraries, Load) {
  EXPECT_GE(cublasLtGetVersion(), 120000u);
  EXPECT_GE(cudnnGetVersion(), 90000u);
  int nccl = 0;
  EXPECT_EQ(ncclGetVersion(&nccl), ncclSuccess);
  EXPECT_GE(nccl, 22000);
}

TEST(MergeLaw, EqualsTheSumInDouble) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 1000; ++i) {
    const float m1 = 20 * normal(random), m2 = 20 * normal(random);
    const float l1 = 1 + std::abs(normal(random)), l2 = 1 + std::abs(normal(random));
    const RowMerge merge = MergeRow(m1, l1, m2, l2);
    const double m = std::max(m1, m2);
    const double l = l1 * std::exp2(m1 - m) + l2 * std::exp2(m2 - m);
    EXPECT_EQ(merge.m, static_cast<float>(m));
    // Two roundings and an exp2 within 2 ulp a term, one rounding of the sum; m1 - m2 rounded to 2^-17 at |m| < 128,
    // which moves exp2 by at most 2^-17 ln 2.
    EXPECT_NEAR(merge.l, l, l * (5 * 0x1p-24 + 0x1p-17 * std::log(2.0)));
  }
}

TEST(MergeLaw, EmptyRowsChangeNothing) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(MergeRow(3.0f, 2.0f, infinity, 0.0f).keep);
  EXPECT_TRUE(MergeRow(-infinity, 0.0f, 3.0f, 2.0f).replace);
  const RowMerge both = MergeRow(-infinity, 0.0f, -infinity, 0.0f);
  EXPECT_TRUE(both.keep);
  EXPECT_EQ(both.l, 0.0f);
}

TEST(MergeLaw, KeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(MergeRow(nan, 1.0f, 3.0f, 2.0f).m));
  EXPECT_TRUE(std::isnan(MergeRow(3.0f, 2.0f, nan, 1.0f).m));
}

TEST(MergeWithoutDevice, IsAnErrorWithAReason) {
  if (DeviceCount() > 0) GTEST_SKIP() << "there is a CUDA device";
  Sample into(5, 64, 0), from(5, 64, 1);
  const Error error = MergeOnDevice(into.view, from.view);
  ASSERT_TRUE(static_cast<bool>(error));
  EXPECT_STRNE(error.message, "");
}

TEST(MergeOnDevice, EqualsTheCpu) {
  if (DeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  for (const int64_t rows : {1, 3, 4, 5, 1000}) {
    for (const int64_t dv : {1, 31, 64, 128, 200}) {
      Sample into(rows, dv, 1), from(rows, dv, 2);
      Sample expected = into;
      Merge(expected.view, from.view);
      ASSERT_EQ(MergeOnDevice(into.view, from.view).message, nullptr);
      for (size_t i = 0; i < into.storage.size(); ++i) {
        // Both sides round each product and sum once and differ in exp2 by at most 4 ulp; terms are below 8.
        ASSERT_NEAR(into.storage[i], expected.storage[i],
                    8 * 6 * 0x1p-23 + std::abs(expected.storage[i]) * 0x1p-22)
            << "float " << i << ", " << rows << " rows of " << dv;
      }
    }
  }
}

}  // namespace
}  // namespace kvring::cuda
