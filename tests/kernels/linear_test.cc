// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "kernels/cpu/matmul_shape.h"
#include "kernels/parallel.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

struct Shape {
  int64_t out, in;
};
// The small model's layers, and sizes that no tile likes.
const Shape kShapes[] = {{576, 576}, {192, 576}, {1536, 576}, {576, 1536},
                         {1, 1},     {7, 3},     {65, 129},   {1000, 33}};
const LinearMath kForms[] = {LinearMath::kF32, LinearMath::kBf16, LinearMath::kInt8};

// Null, with the test skipped, only when this CPU lacks the form; f32 must always be there.
std::unique_ptr<Linear> Make(const std::vector<float>& w, Shape shape, LinearOptions options) {
  std::string error;
  auto linear = MakeLinear(w.data(), shape.out, shape.in, options, &error);
  if (linear == nullptr) {
    EXPECT_NE(options.math, LinearMath::kF32) << error;
    EXPECT_FALSE(error.empty());
  }
  return linear;
}

float Largest(const float* x, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

// The bound of one output of a form: x . w with what the form does to its operands.
double Bound(LinearMath math, const float* x, const float* w, int64_t n) {
  double magnitude = 0, sum_x = 0, sum_w = 0;
  for (int64_t i = 0; i < n; ++i) {
    magnitude += std::fabs(static_cast<double>(x[i]) * w[i]);
    sum_x += std::fabs(x[i]);
    sum_w += std::fabs(w[i]);
  }
  if (math == LinearMath::kF32) return Tolerance::ForDot(n, magnitude).absolute;
  if (math == LinearMath::kBf16) return Tolerance::ForDot(n, magnitude, kUnitBf16).absolute;
  // Half a step of each operand against the other, both halves together, and the roundings of two scales and two products;
  // the sum itself is exact.
  const double step_x = Largest(x, n) / 127.0, step_w = Largest(w, n) / 127.0;
  const double rounding = step_x / 2 * sum_w + step_w / 2 * sum_x + n * step_x * step_w / 4;
  return rounding * (1 + 1e-5) + 8 * kUnitF32 * (magnitude + rounding);
}

TEST(Linear, AgreesWithTheReferenceInEveryForm) {
  for (Shape shape : kShapes) {
    const auto w = NormalFloats(shape.out * shape.in, 1, 0.05f), x = NormalFloats(5 * shape.in, 2);
    std::vector<float> want(5 * shape.out), got(want.size());
    MakeLinearRef(w.data(), shape.out, shape.in)->Forward(x.data(), want.data(), 5);
    for (LinearMath math : kForms) {
      const auto linear = Make(w, shape, {math, false});
      if (linear == nullptr) continue;
      EXPECT_EQ(linear->in(), shape.in);
      EXPECT_EQ(linear->out(), shape.out);
      EXPECT_GE(linear->bytes(), shape.out * shape.in * MatmulElementBytes(math));
      linear->Forward(x.data(), got.data(), 5);
      for (int64_t i = 0; i < 5 * shape.out; ++i) {
        const float* row = x.data() + i / shape.out * shape.in;
        const float* column = w.data() + i % shape.out * shape.in;
        ASSERT_NEAR(got[i], want[i], Bound(math, row, column, shape.in) + 1e-30)
            << LinearMathName(math) << " " << shape.out << "x" << shape.in << " element " << i;
      }
    }
  }
}

// The law: row i's bits depend on row i alone, whatever the number of rows, the row's place and the threads.
TEST(Linear, ARowHasTheSameBitsInEveryCompany) {
  constexpr int64_t kRows = 512;
  for (Shape shape : kShapes) {
    const auto w = NormalFloats(shape.out * shape.in, 3), x = NormalFloats(kRows * shape.in, 4);
    for (LinearMath math : kForms) {
      const auto linear = Make(w, shape, {math, false});
      if (linear == nullptr) continue;
      std::vector<float> all(kRows * shape.out), some(all.size());
      SetThreads(2);
      linear->Forward(x.data(), all.data(), kRows);
      SetThreads(1);
      for (int64_t rows : {1, 3, 8, 37, 64, 100, 512}) {
        for (int64_t first : {int64_t{0}, kRows - rows}) {
          linear->Forward(x.data() + first * shape.in, some.data(), rows);
          ASSERT_TRUE(
              SameBits({some.data(), static_cast<size_t>(rows * shape.out)},
                       {all.data() + first * shape.out, static_cast<size_t>(rows * shape.out)}))
              << LinearMathName(math) << " " << shape.out << "x" << shape.in << ", " << rows
              << " rows from " << first;
        }
      }
    }
  }
}

// Ranks are threads that share a layer.
TEST(Linear, ManyThreadsShareOneLayer) {
  const Shape shape{576, 576};
  const auto w = NormalFloats(shape.out * shape.in, 3), x = NormalFloats(70 * shape.in, 4);
  for (LinearMath math : kForms) {
    const auto linear = Make(w, shape, {math, false});
    if (linear == nullptr) continue;
    std::vector<float> want(70 * shape.out);
    linear->Forward(x.data(), want.data(), 70);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([&, rank] {
        SetThreads(1 + rank % 2);
        std::vector<float> got(want.size());
        for (int64_t rows = 70 - rank; rows > 0; rows -= 9) {
          linear->Forward(x.data(), got.data(), rows);
          const auto n = static_cast<size_t>(rows * shape.out);
          EXPECT_TRUE(SameBits({got.data(), n}, {want.data(), n}));
        }
      });
    }
    for (auto& rank : ranks) rank.join();
  }
}

TEST(Linear, BackwardDataIsTheTransposedProduct) {
  for (Shape shape : kShapes) {
    const auto w = NormalFloats(shape.out * shape.in, 5), dy = NormalFloats(5 * shape.out, 6);
    std::vector<float> want(5 * shape.in), got(want.size());
    EXPECT_FALSE(
        MakeLinearRef(w.data(), shape.out, shape.in)->BackwardData(dy.data(), want.data(), 5));
    for (LinearMath math : kForms) {
      const auto linear = Make(w, shape, {math, true});
      if (linear == nullptr) continue;
      ASSERT_FALSE(linear->BackwardData(dy.data(), got.data(), 5));
      // |dy| and |w| are below 6 by their making: a bound of sum |dy w|.
      EXPECT_TRUE(AllNear(got, want, Tolerance::ForDot(shape.out, 36.0 * shape.out)));
      std::vector<float> alone(shape.in);
      ASSERT_FALSE(linear->BackwardData(dy.data() + 3 * shape.out, alone.data(), 1));
      EXPECT_TRUE(SameBits(alone, {got.data() + 3 * shape.in, static_cast<size_t>(shape.in)}));
      const auto plain = Make(w, shape, {math, false});
      EXPECT_TRUE(plain->BackwardData(dy.data(), got.data(), 5))
          << "it keeps nothing for a backward pass";
    }
  }
}

TEST(Linear, Int8ShowsANaNAndTakesZeros) {
  const std::vector<float> w = NormalFloats(20 * 40, 1);
  const auto linear = Make(w, {20, 40}, {LinearMath::kInt8, false});
  if (linear == nullptr) GTEST_SKIP() << "no exact int8 products on this CPU";
  std::vector<float> x(80, 0.0f), y(40, 1.0f);
  x[7] = NAN;
  linear->Forward(x.data(), y.data(), 2);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(std::isnan(y[i]));
  for (int i = 20; i < 40; ++i) EXPECT_EQ(y[i], 0.0f);
}

// Our own product holds the law on every instruction set, and so does the padded form of any other.
TEST(MatmulShape, OurOwnHoldsTheLawEverywhere) {
  for (MatmulKey key : {MatmulKey{LinearMath::kF32, 576, 320},
                        {LinearMath::kF32, 33, 1},
                        {LinearMath::kF32, 1, 65},
                        {LinearMath::kF32, 100, 130}}) {
    ForEachSimdTarget([&](int64_t) { EXPECT_TRUE(HoldsRowLaw(*MakePanelShape(key), key)); });
    const auto padded = MakePaddedShape(MakePanelShape(key), key);
    EXPECT_TRUE(HoldsRowLaw(*padded, key));
  }
  EXPECT_EQ(MakePanelShape({LinearMath::kBf16, 8, 8}), nullptr);
}

// A product whose last bits depend on the number of rows.
class Unlawful : public MatmulShape {
 public:
  explicit Unlawful(const MatmulKey& key) : inner_(MakePanelShape(key)), key_(key) {}
  int64_t packed_bytes() const override { return inner_->packed_bytes(); }
  bool Pack(const void* w, uint8_t* packed) const override { return inner_->Pack(w, packed); }
  bool Run(const void* x, int64_t rows, const uint8_t* packed, void* y) const override {
    if (!inner_->Run(x, rows, packed, y)) return false;
    if (rows == 3) static_cast<float*>(y)[2 * key_.n + 1] *= 1 + 2 * static_cast<float>(kUnitF32);
    return true;
  }

 private:
  std::shared_ptr<const MatmulShape> inner_;
  MatmulKey key_;
};

TEST(MatmulShape, TheCheckSeesOneBitAndPaddingMendsIt) {
  const MatmulKey key{LinearMath::kF32, 64, 48};
  EXPECT_FALSE(HoldsRowLaw(Unlawful(key), key));
  EXPECT_TRUE(HoldsRowLaw(*MakePaddedShape(std::make_shared<Unlawful>(key), key), key));
}

TEST(Linear, TheChosenFormExistsAndStays) {
  const LinearMath plain = ChooseLinearMath();
  EXPECT_TRUE(plain == LinearMath::kF32 || plain == LinearMath::kBf16);
  EXPECT_EQ(ChooseLinearMath(), plain);
  EXPECT_NE(Make(NormalFloats(64, 1), {8, 8}, {plain, false}), nullptr);
  const BlockForm forms[] = {{4, 32, true}, {4, 32, false}, {8, 32, false}, {8, 16, false}};
  for (const BlockForm& form : forms) {
    const LinearMath math = ChooseLinearMath(form);
    EXPECT_TRUE(math == LinearMath::kBlocks || math == plain);
    EXPECT_EQ(ChooseLinearMath(form), math);
  }
}

}  // namespace
}  // namespace kvring
