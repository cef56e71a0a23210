// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cpu/block_product.h"
#include "kernels/parallel.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

// The forms that model files have: 4 bits with an offset (Q4_1, Q4_K) or a zero (Q4_0), 8 bits (Q5_0, Q8_0), with an
// offset (Q5_1, Q5_K), with two scales a block (Q6_K). `half`: scales that fit fp16.
struct Form {
  const char* name;
  int bits, group, zero;
  bool offset, half;
};
const Form kForms[] = {
    {"Q4_0", 4, 32, 8, false, true},  {"Q4_1", 4, 32, 0, true, true},
    {"Q4_K", 4, 32, 0, true, false},  {"Q8_0", 8, 32, 0, false, true},
    {"Q5_1", 8, 32, 0, true, true},   {"Q5_K", 8, 32, 0, true, false},
    {"Q6_K", 8, 16, 0, false, false}, {"rounded", 8, 32, 0, false, false},
};

// Codes over the whole range, its ends often: -128 x -127 is where narrow sums would overflow.
BlockWeights Random(const Form& form, int64_t rows, int64_t in, uint32_t seed) {
  std::mt19937 generator(seed);
  BlockWeights w;
  w.rows = rows;
  w.bits = form.bits;
  w.group = form.group;
  w.zero = form.zero;
  const int low = form.bits == 4 ? 0 : -128, high = form.bits == 4 ? 15 : 127;
  for (int64_t i = 0; i < rows * in; ++i) {
    const auto draw = static_cast<int>(generator() >> 8);
    w.codes.push_back(static_cast<int8_t>(draw % 4 == 0   ? low
                                          : draw % 4 == 1 ? high
                                                          : low + draw / 4 % (high - low + 1)));
  }
  const int64_t scales = rows * ((in + form.group - 1) / form.group);
  for (int64_t i = 0; i < scales; ++i) {
    // Eighths of a power of two fit fp16; a third does not.
    const float step = form.half ? 0x1p-10f : 0x1p-10f / 3;
    w.scales.push_back(static_cast<float>(1 + generator() % 16) * step);
    if (form.offset) w.offsets.push_back(-static_cast<float>(generator() % 64) * step);
  }
  return w;
}

// Numbers of all magnitudes, blocks of zeros among them.
std::vector<float> Activations(int64_t rows, int64_t in, uint32_t seed) {
  std::vector<float> x = NormalFloats(rows * in, seed);
  for (int64_t i = 0; i < rows * in; ++i) {
    if (i / 32 % 7 == 3) x[i] = 0;
    if (i % 61 == 5) x[i] *= 50;
  }
  return x;
}

std::vector<float> Forward(const Linear& linear, const float* x, int64_t rows) {
  // Guard: nothing beyond the last output is written.
  std::vector<float> y(static_cast<size_t>(rows * linear.out()) + 40, -7.0f);
  linear.Forward(x, y.data(), rows);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(y[rows * linear.out() + i], -7.0f);
  y.resize(y.size() - 40);
  return y;
}

bool Fuses(int64_t target) { return target != HWY_SSSE3 && target != HWY_SSE4; }

struct Shape {
  int64_t out, in;
};
const Shape kShapes[] = {{576, 576}, {192, 576}, {33, 64}, {1, 32}, {65, 96}, {32, 1536}};

// Every instruction set against plain loops: equal bits where products are fused; elsewhere two more roundings a step,
// each at most 2^-24 of the largest partial sum.
TEST(BlockLinear, AgreesWithThePlainFormOnEveryInstructionSet) {
  for (const Form& form : kForms) {
    for (Shape shape : kShapes) {
      const BlockWeights w = Random(form, shape.out, shape.in, 3);
      const std::vector<float> x = Activations(13, shape.in, 4);
      const std::vector<float> want = Forward(*MakeBlockLinearRef({w}, shape.in), x.data(), 13);
      const auto linear = MakeBlockLinear({w}, shape.in);
      double magnitude = 0;
      for (float y : want) magnitude = std::max(magnitude, std::fabs(static_cast<double>(y)));
      ForEachSimdTarget([&](int64_t target) {
        for (int64_t rows : {1, 2, 3, 5, 13}) {
          const std::vector<float> got = Forward(*linear, x.data(), rows);
          const std::span<const float> expected(want.data(), got.size());
          if (Fuses(target)) {
            ASSERT_TRUE(SameBits(got, expected))
                << form.name << " " << shape.out << "x" << shape.in << ", " << rows << " rows";
          } else {
            // 3 steps a group of 16; partial sums stay below 8 times the largest output of these random walks.
            const double steps = 3.0 * static_cast<double>(shape.in) / 16;
            ASSERT_TRUE(AllNear(got, expected, Tolerance{steps * kUnitF32 * 8 * magnitude, 0}))
                << form.name << " " << shape.out << "x" << shape.in << ", " << rows << " rows";
          }
        }
      });
    }
  }
}

// Against double: half a step of each activation against the weights' magnitudes is all that is lost beside fp32 sums.
TEST(BlockLinear, LosesTheRoundingOfActivationsAlone) {
  constexpr int64_t kOut = 70, kIn = 576, kRows = 3;
  for (const Form& form : kForms) {
    const BlockWeights w = Random(form, kOut, kIn, 5);
    const std::vector<float> x = Activations(kRows, kIn, 6);
    const std::vector<float> got = Forward(*MakeBlockLinear({w}, kIn), x.data(), kRows);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t o = 0; o < kOut; ++o) {
        double sum = 0, rounding = 0, magnitude = 0;
        for (int64_t b = 0; b < kIn; b += 32) {
          double most = 0;
          for (int64_t i = b; i < b + 32; ++i)
            most = std::max(most, std::fabs(static_cast<double>(x[r * kIn + i])));
          for (int64_t i = b; i < b + 32; ++i) {
            const int64_t g = (o * kIn + i) / form.group;
            const double value = w.scales[g] * (w.codes[o * kIn + i] - form.zero) +
                                 (form.offset ? w.offsets[g] : 0.0f);
            const double range = std::fabs(w.scales[g] * (w.codes[o * kIn + i] - form.zero)) +
                                 (form.offset ? std::fabs(w.offsets[g]) : 0.0f);
            sum += x[r * kIn + i] * value;
            rounding += most / 254 * std::fabs(value);
            magnitude += most * range;
          }
        }
        // The second term: fp32 steps, three a group, over at most the sum of magnitudes.
        EXPECT_NEAR(got[r * kOut + o], sum,
                    rounding * (1 + 1e-5) + 3.0 * kIn / form.group * kUnitF32 * magnitude)
            << form.name << " row " << r << " output " << o;
      }
    }
  }
}

// The law on random shapes, threads and row counts, parts of different forms in one layer.
TEST(BlockLinear, ARowHasTheSameBitsInEveryCompany) {
  std::mt19937 generator(7);
  for (int round = 0; round < 6; ++round) {
    const int64_t in = 32 * (1 + generator() % 20), rows = 1 + generator() % 600;
    std::vector<BlockWeights> parts;
    for (int part = 0; part < 3; ++part) {
      parts.push_back(
          Random(kForms[generator() % std::size(kForms)], 1 + generator() % 150, in, generator()));
    }
    const auto linear = MakeBlockLinear(parts, in);
    const std::vector<float> x = Activations(rows, in, round);
    SetThreads(1);
    const std::vector<float> all = Forward(*linear, x.data(), rows);
    ASSERT_EQ(all.size(), static_cast<size_t>(rows * linear->out()));
    for (int i = 0; i < 12; ++i) {
      SetThreads(1 + i % 4);
      const int64_t count = i < 8 ? std::min<int64_t>(rows, 1 + i) : 1 + generator() % rows;
      const int64_t first = generator() % (rows - count + 1);
      ASSERT_TRUE(SameBits(
          Forward(*linear, x.data() + first * in, count),
          std::span<const float>(all).subspan(first * linear->out(), count * linear->out())))
          << count << " of " << rows << " rows from " << first << ", in " << in;
    }
  }
  SetThreads(1);
}

TEST(BlockLinear, WeightsStayAsSmallAsTheFileHasThem) {
  // 4 bits a number, two fp16 a block of 32: 5 bits. 8 bits and one fp16: 8.5.
  EXPECT_EQ(MakeBlockLinear({Random(kForms[1], 576, 576, 1)}, 576)->bytes(), 576 * 576 * 5 / 8);
  EXPECT_EQ(MakeBlockLinear({Random(kForms[3], 576, 576, 1)}, 576)->bytes(), 576 * 576 * 17 / 16);
}

TEST(BlockLinear, NumbersWithoutCodesAreRounded) {
  constexpr int64_t kOut = 20, kIn = 40;  // a block and a quarter
  const std::vector<float> w = NormalFloats(kOut * kIn, 1), x = NormalFloats(kIn, 2);
  const BlockWeights blocks = RoundToBlocks(w.data(), kOut, kIn);
  ASSERT_EQ(blocks.scales.size(), static_cast<size_t>(kOut * 2));
  for (int64_t i = 0; i < kOut * kIn; ++i) {
    const float scale = blocks.scales[i / kIn * 2 + i % kIn / 32];
    EXPECT_NEAR(scale * static_cast<float>(blocks.codes[i]), w[i], scale * 0.5001f);
  }
  EXPECT_TRUE(SameBits(Forward(*MakeBlockLinear({blocks}, kIn), x.data(), 1),
                       Forward(*MakeBlockLinearRef({blocks}, kIn), x.data(), 1)));
}

TEST(BlockLinear, ShowsANaNAndTakesZeros) {
  for (const Form& form : kForms) {
    const auto linear = MakeBlockLinear({Random(form, 40, 64, 1)}, 64);
    for (float bad : {NAN, INFINITY}) {
      std::vector<float> x(64 * 3, 0.0f);
      x[70] = bad;
      const std::vector<float> y = Forward(*linear, x.data(), 3);
      for (int i = 0; i < 120; ++i) {
        if (i / 40 == 1) {
          EXPECT_TRUE(std::isnan(y[i])) << form.name;
        } else {
          EXPECT_EQ(y[i], 0.0f) << form.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvring
