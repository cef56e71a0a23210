// SPDX-License-Identifier: Apache-2.0
#include "kernels/softmax_partial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/exp2.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// A partial that owns its floats.
struct Owned {
  Owned(int64_t rows, int64_t dv) : rows(rows), dv(dv), storage(PartialFloats(rows, dv)) {
    MakeEmpty(view());
  }
  SoftmaxPartial view() { return PartialAt(storage.data(), rows, dv); }
  int64_t rows, dv;
  std::vector<float> storage;
};

// The exact state of some keys with these logits and values, in double, rounded once.
void Fill(const SoftmaxPartial& p, int64_t row, const std::vector<double>& logits, uint32_t seed) {
  const auto v = NormalFloats(static_cast<int64_t>(logits.size()) * p.dv, seed);
  const double m = *std::max_element(logits.begin(), logits.end());
  double l = 0;
  std::vector<double> o(static_cast<size_t>(p.dv));
  for (size_t j = 0; j < logits.size(); ++j) {
    const double w = std::exp2(logits[j] - m);
    l += w;
    for (int64_t i = 0; i < p.dv; ++i) o[i] += w * v[j * p.dv + i];
  }
  p.m[row] = static_cast<float>(m);
  p.l[row] = static_cast<float>(l);
  for (int64_t i = 0; i < p.dv; ++i) p.o[row * p.dv + i] = static_cast<float>(o[i]);
}

// Integers as logits, so that rounding m costs nothing.
Owned Random(int64_t rows, int64_t dv, uint32_t seed, int spread = 20) {
  Owned owned(rows, dv);
  std::mt19937 generator(seed);
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> logits(1 + generator() % 40);
    for (double& s : logits) s = static_cast<int>(generator() % (2 * spread)) - spread;
    Fill(owned.view(), r, logits, generator());
  }
  return owned;
}

std::vector<float> Output(Owned partial) {
  std::vector<float> out(static_cast<size_t>(partial.rows * partial.dv));
  EXPECT_TRUE(Finalize(partial.view(), out.data()));
  return out;
}

TEST(SoftmaxPartial, EmptyChangesNoBitOnEitherSide) {
  Owned x = Random(5, 33, 1);
  const auto before = x.storage;
  Owned empty(5, 33);
  // What an empty row holds beside l == 0 decides nothing.
  for (float m : {-kInf, 0.0f, 3e38f, static_cast<float>(NAN)}) {
    std::fill_n(empty.view().m, 5, m);
    Merge(x.view(), empty.view());
    EXPECT_TRUE(SameBits(x.storage, before));
    Owned into = empty;
    Merge(into.view(), x.view());
    EXPECT_TRUE(SameBits(into.storage, before));
  }
}

TEST(SoftmaxPartial, EmptiesMergeToEmptyAndThenTakeAnything) {
  Owned a(3, 8), b(3, 8);
  for (int i = 0; i < 3; ++i) Merge(a.view(), b.view());
  for (float l : {a.view().l[0], a.view().l[1], a.view().l[2]}) EXPECT_EQ(l, 0.0f);
  for (float value : a.storage) EXPECT_FALSE(std::isnan(value));
  EXPECT_EQ(FindNonFinite(a.view()), -1);
  std::vector<float> out(24, 7.0f);
  EXPECT_FALSE(Finalize(a.view(), out.data()));
  EXPECT_TRUE(SameBits(out, std::vector<float>(24, 0.0f)));
  Owned x = Random(3, 8, 2);
  Merge(a.view(), x.view());
  EXPECT_TRUE(SameBits(a.storage, x.storage));
}

// The definition in scalars, every operation rounded on its own: the same bits on every instruction set.
TEST(SoftmaxPartial, MergeHasTheBitsOfItsDefinition) {
  constexpr int64_t kRows = 5;
  for (const int64_t dv : {1, 3, 16, 64, 100}) {
    Owned a(kRows, dv), b(kRows, dv);
    for (int64_t r = 0; r < kRows; ++r) {
      Fill(a.view(), r, {0.5 * static_cast<double>(r), -1.0}, 1);
      Fill(b.view(), r, {3.0 - static_cast<double>(r) * 40, 0.25}, 2);
    }
    Owned expected = a;
    const SoftmaxPartial into = expected.view(), from = b.view();
    for (int64_t r = 0; r < kRows; ++r) {
      const float m = std::max(into.m[r], from.m[r]);
      const float fa = Exp2(into.m[r] - m), fb = Exp2(from.m[r] - m);
      into.m[r] = m;
      into.l[r] = fa * into.l[r] + fb * from.l[r];
      for (int64_t i = r * dv; i < (r + 1) * dv; ++i) into.o[i] = fa * into.o[i] + fb * from.o[i];
    }
    ForEachSimdTarget([&](int64_t) {
      Owned merged = a;
      Merge(merged.view(), b.view());
      EXPECT_EQ(merged.storage, expected.storage) << dv;
    });
  }
}

TEST(SoftmaxPartial, IsAssociativeAndCommutativeWithinRounding) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const Owned a = Random(4, 17, 3 * seed), b = Random(4, 17, 3 * seed + 1),
                c = Random(4, 17, 3 * seed + 2);
    Owned left = a, right = b, turned = c, bc = b, ab = a;
    Merge(left.view(), right.view());
    Merge(left.view(), turned.view());  // (a + b) + c
    Merge(bc.view(), turned.view());
    Owned other = a;
    Merge(other.view(), bc.view());  // a + (b + c)
    Owned cba = c;
    Merge(cba.view(), right.view());
    Merge(cba.view(), ab.view());  // (c + b) + a
    // Each merge rounds a product, a sum and a factor (exp2: 2 u): 5 u of sum |o|, which is below l * max|v| = 6 l.
    const Tolerance tolerance{3 * 5 * kUnitF32 * 2 * 6, 0};
    EXPECT_TRUE(AllNear(Output(other), Output(left), tolerance));
    EXPECT_TRUE(AllNear(Output(cba), Output(left), tolerance));
  }
}

TEST(SoftmaxPartial, AnyGroupingOfManyGivesTheSameOutput) {
  std::vector<Owned> parts;
  for (uint32_t i = 0; i < 64; ++i)
    parts.push_back(i % 7 == 3 ? Owned(3, 9) : Random(3, 9, 100 + i));
  Owned chain(3, 9);
  for (Owned& part : parts) Merge(chain.view(), part.view());
  std::vector<Owned> tree = parts;
  for (size_t width = 1; width < tree.size(); width *= 2) {
    for (size_t i = 0; i + width < tree.size(); i += 2 * width)
      Merge(tree[i].view(), tree[i + width].view());
  }
  EXPECT_TRUE(AllNear(Output(tree[0]), Output(chain), {64 * 5 * kUnitF32 * 2 * 6, 0}));
}

TEST(SoftmaxPartial, AHugeLogitWinsAndVeryLowOnesStillCount) {
  Owned low(1, 4), high(1, 4);
  Fill(low.view(), 0, {-60000.0, -60001.0}, 1);
  Fill(high.view(), 0, {3e38}, 2);
  // A real score near -60,000 beats everything masked: emptiness, not a constant, says what is masked.
  Owned masked(1, 4);
  Merge(masked.view(), low.view());
  EXPECT_TRUE(SameBits(masked.storage, low.storage));
  EXPECT_TRUE(SameBits(Output(masked), Output(low)));
  Owned both = low;
  Merge(both.view(), high.view());
  EXPECT_TRUE(SameBits(Output(both), Output(high)));
  Merge(high.view(), low.view());
  EXPECT_TRUE(SameBits(both.storage, high.storage));
}

TEST(SoftmaxPartial, NonFiniteRowsAreFoundWhereTheyAre) {
  Owned x = Random(6, 5, 9);
  EXPECT_EQ(FindNonFinite(x.view()), -1);
  for (float bad : {kInf, -kInf, static_cast<float>(NAN)}) {
    for (int field = 0; field < 2; ++field) {
      Owned broken = x;
      (field == 0 ? broken.view().m : broken.view().l)[4] = bad;
      EXPECT_EQ(FindNonFinite(broken.view()), 4);
      std::vector<float> out(30);
      EXPECT_FALSE(Finalize(broken.view(), out.data()));
      // Merging does not hide it, on either side.
      Owned into = x;
      Merge(into.view(), broken.view());
      EXPECT_EQ(FindNonFinite(into.view()), 4) << bad << " in field " << field;
      Merge(broken.view(), x.view());
      EXPECT_EQ(FindNonFinite(broken.view()), 4) << bad << " in field " << field;
    }
  }
}

TEST(SoftmaxPartial, ANonFiniteValueStopsFinalize) {
  Owned x = Random(2, 5, 10);
  x.view().o[7] = NAN;
  std::vector<float> out(10, 1.0f);
  EXPECT_FALSE(Finalize(x.view(), out.data()));
  EXPECT_TRUE(SameBits({out.data() + 5, 5}, std::vector<float>(5, 0.0f)));
  EXPECT_NE(out[0], 0.0f);
}

}  // namespace
}  // namespace kvring
