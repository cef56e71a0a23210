// SPDX-License-Identifier: Apache-2.0
// The rotated codec against its definition, theory and the plain reading in double.
#include <gtest/gtest.h>

#include "kernels/codec/hadamard.h"
#include "kernels/codec/lloyd_max.h"
#include "kernels/ref/codec_ref.h"
#include "tests/kernels/codec/codec_harness.h"

namespace kvring {
namespace {

CodecCase Rot(int bits, std::vector<std::string> flags = {}, int dk = 64, int dv = 64) {
  CodecCase c;
  c.name = "rot" + std::to_string(bits);
  c.flags = std::move(flags);
  c.dk = dk, c.dv = dv;
  return c;
}

TEST(Hadamard, RowsAreTheMatrixAndOrthogonal) {
  for (int dim : {2, 16, 64, 80, 96, 100, 112, 128, 192, 256}) {
    const Hadamard transform(dim);
    const std::vector<double> matrix = RotationMatrix(dim);
    std::vector<float> x(19 * dim), y(x.size());
    std::mt19937 random(dim);
    for (float& value : x) value = std::normal_distribution<float>()(random);
    transform.Rows(x.data(), 19, transform.signs().data(), y.data());
    for (int r = 0; r < 19; ++r) {
      for (int i = 0; i < dim; ++i) {
        double expected = 0.0;
        for (int j = 0; j < dim; ++j) expected += matrix[i * dim + j] * x[r * dim + j];
        // log2(dim) + 1 roundings of numbers of about 4 at most.
        ASSERT_NEAR(y[r * dim + i], expected, 4 * 10 * 0x1p-24) << dim << " " << i;
      }
    }
    transform.RowsInverse(y.data(), 19, transform.signs().data(), y.data());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i], 4 * 20 * 0x1p-24) << dim;
  }
}

// A row's result is its own: alone or among others, the same bits.
TEST(Hadamard, RowsDoNotDependOnCompany) {
  const Hadamard transform(64);
  std::vector<float> x(37 * 64), together(x.size()), alone(64);
  std::mt19937 random(1);
  for (float& value : x) value = std::normal_distribution<float>()(random);
  transform.Rows(x.data(), 37, transform.signs().data(), together.data());
  for (int r = 0; r < 37; ++r) {
    transform.Rows(&x[r * 64], 1, transform.signs().data(), alone.data());
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), &together[r * 64]));
  }
}

TEST(LloydMax, ScaleBytes) {
  EXPECT_EQ(ScaleValue(0), 0.0f);
  EXPECT_EQ(ScaleValue(112), 1.0f);
  for (int e = 1; e < 256; ++e) {
    // Eight literals of 2^(i/8), each rounded to fp32.
    EXPECT_NEAR(ScaleValue(e) / std::exp2((e - 112) / 8.0), 1.0, 1e-7) << e;
    EXPECT_EQ(NearestScale(ScaleValue(e)), e);
    EXPECT_EQ(NearestScale(ScaleValue(e) * 1.04f), e);
    EXPECT_EQ(NearestScale(ScaleValue(e) * 0.96f), e);
    EXPECT_EQ(CeilScale(ScaleValue(e)), e);
    EXPECT_EQ(CeilScale(ScaleValue(e) * 1.001f), std::min(e + 1, 255));
  }
  EXPECT_EQ(NearestScale(1e30f), 255);
  EXPECT_EQ(NearestScale(1e-30f), 1);
}

// Mean squared error of Gaussian vectors is that of the int8 tables (tests/golden/codec/tables.py). It is approached from
// below: a scale fitted to few numbers follows their own extremes (about a fifth less error at d = 64 and 4 bits).
TEST(Rot, GaussianErrorIsLloydMax) {
  const double theory[] = {0, 0, 0.117482, 0.034590, 0.009514};
  for (int bits : {2, 3, 4}) {
    CodecHarness wide(Rot(bits, {}, 512, 512)), narrow(Rot(bits));
    for (CodecHarness* h : {&wide, &narrow}) {
      h->MakeRows(256, 11, 0.0f);
      h->FreezeState();
      ASSERT_FALSE(h->EncodeAll());
    }
    // The byte of scale costs 1 to 3.4 %, the fit still gains up to 5 % at 512; 2 x 252 x 512 samples leave under 1 %.
    EXPECT_NEAR(ValueError(wide).mse_ratio() / theory[bits], 1.0, 0.06) << bits;
    EXPECT_NEAR(KeyError(wide).mse_ratio() / theory[bits], 1.0, 0.06) << bits;
    EXPECT_LT(ValueError(narrow).mse_ratio(), theory[bits] * 1.01) << bits;
    EXPECT_GT(ValueError(narrow).mse_ratio(), theory[bits] * 0.75) << bits;
  }
  CodecHarness h(Rot(8));
  h.MakeRows(512, 11, 0.0f);
  h.FreezeState();
  ASSERT_FALSE(h.EncodeAll());
  // Uniform steps s of at most 2^(1/8) max/127, max near 2.7 deviations: s^2 / 12.
  EXPECT_LT(ValueError(h).mse_ratio(), std::pow(std::exp2(0.125) * 3.2 / 127, 2) / 12);
}

TEST(Rot, MeanHelpsBiasedKeys) {
  CodecHarness with(Rot(3)), without(Rot(3, {"no-mean"}));
  for (CodecHarness* h : {&with, &without}) {
    h->MakeRows(512, 12, 3.0f);
    h->FreezeState();
    ASSERT_FALSE(h->EncodeAll());
  }
  // With a mean of 3 deviations the vector without centring has 10 times the energy, and so 10 times the error.
  EXPECT_LT(KeyError(with).mse_ratio(), KeyError(without).mse_ratio() / 7.0);
  EXPECT_EQ(without.codec().traits().id, "rot3:no-mean");
}

TEST(Rot, OptionsAndState) {
  const auto floats = [](const CodecHarness& h) { return h.codec().StateFloats(); };
  EXPECT_EQ(floats(CodecHarness(Rot(4))), 64 + 32);
  EXPECT_EQ(floats(CodecHarness(Rot(4, {"no-mean"}))), 32);
  EXPECT_EQ(floats(CodecHarness(Rot(4, {"no-balance"}))), 64);
  const CodecHarness plain(Rot(4, {"no-balance", "no-mean"}));
  EXPECT_EQ(floats(plain), 0);
  EXPECT_EQ(plain.codec().traits().prefix_tokens, 0);
  EXPECT_EQ(plain.codec().traits().k_scope, ParamScope::kToken);
  EXPECT_EQ(plain.codec().traits().id, "rot4:no-mean:no-balance");
  EXPECT_EQ(CodecHarness(Rot(4)).codec().traits().prefix_tokens, 128);
  EXPECT_EQ(CodecHarness(Rot(4)).codec().StateBytes(), 2 * 96);
}

// mu and w by their definition, in double.
TEST(Rot, StateIsMeanAndBalance) {
  CodecHarness h(Rot(4));
  const auto key = [](int64_t t, int head, int i) {
    return RoundHalf(0.5f * i + (i % 7) * std::sin(1.0f + t * 0.7f + i) + head);
  };
  h.SetRows(192, key, [](int64_t, int, int) { return 1.0f; });
  h.FreezeState();
  std::vector<double> ek(32), eq(32, 2.0);  // queries are ones: |q_p|^2 = 2
  for (int i = 0; i < 64; ++i) {
    double mean = 0.0;
    for (int64_t t = 4; t < 128; ++t) mean += key(t, 1, i) / 124.0;
    EXPECT_NEAR(h.State(1)[i], mean, 0x1p-11 * std::abs(mean) + 1e-6);
    const double mu = h.State(1)[i];
    for (int64_t t = 4; t < 128; ++t) ek[i / 2] += std::pow(key(t, 1, i) - mu, 2) / 124.0;
  }
  double mean_ek = 0.0, logs = 0.0;
  for (double e : ek) mean_ek += e / 32;
  std::vector<double> w(32);
  for (int p = 0; p < 32; ++p) {
    w[p] = std::pow((eq[p] + 0.002) / (ek[p] + 0.001 * mean_ek), 0.25);
    logs += std::log(w[p]) / 32;
  }
  for (int p = 0; p < 32; ++p) {
    // fp16 rounding, and fp32 sums of squares up to 1000 against differences of about 1 (a quarter of it after the root).
    EXPECT_NEAR(h.State(1)[64 + p] / (w[p] / std::exp(logs)), 1.0, 1e-3) << p;
  }
}

// Sinks do not enter the state.
TEST(Rot, SinksDoNotEnterTheState) {
  const auto value = [](int64_t, int, int) { return 1.0f; };
  CodecHarness mild(Rot(4)), wild(Rot(4));
  mild.SetRows(
      128, [](int64_t t, int, int i) { return RoundHalf(std::cos(t + i)); }, value);
  wild.SetRows(
      128, [](int64_t t, int, int i) { return t < 4 ? 3000.0f : RoundHalf(std::cos(t + i)); },
      value);
  mild.FreezeState();
  wild.FreezeState();
  EXPECT_EQ(mild.state(), wild.state());
}

struct RotForm {
  int bits;
  std::vector<std::string> flags;
  int dk, dv;
};

void ExpectTile(const std::vector<float>& tile, const std::vector<double>& rows, int dim,
                int tokens, int64_t row_step, int64_t token_step, double tolerance) {
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < dim; ++i) {
      ASSERT_NEAR(tile[i * row_step + t * token_step], rows[t * dim + i], tolerance)
          << t << " " << i;
    }
  }
}

TEST(Rot, TilesMatchThePlainReading) {
  const RotForm forms[] = {{4, {}, 64, 64},           {3, {}, 64, 64},
                           {2, {}, 64, 64},           {8, {}, 64, 64},
                           {4, {"g64"}, 128, 192},    {3, {"g64"}, 100, 80},
                           {3, {"no-mean"}, 96, 112}, {2, {"no-balance"}, 192, 128}};
  for (const RotForm& form : forms) {
    CodecHarness h(Rot(form.bits, form.flags, form.dk, form.dv));
    h.MakeRows(192 + 30, 13, 2.0f);
    h.FreezeState();
    for (const int64_t begin : {int64_t{0}, int64_t{1'048'576}}) {
      h.set_begin(begin);
      ASSERT_FALSE(h.EncodeAll());
      for (int64_t block : {0, 2, 3}) {
        const PageView page = h.View(block, 1);
        const auto has = [&](const char* flag) {
          return std::find(form.flags.begin(), form.flags.end(), flag) != form.flags.end();
        };
        RotPageRef ref{form.bits, 64, form.dk, form.dv, has("g64"), &h.rope(), nullptr, nullptr};
        std::vector<float> weights(form.dk, 1.0f);
        const int mean_floats = has("no-mean") ? 0 : form.dk;
        if (mean_floats > 0) ref.mean = h.State(1);
        for (int i = 0; !has("no-balance") && i < form.dk; ++i)
          weights[i] = h.State(1)[mean_floats + i / 2];
        ref.weights = weights.data();
        // Numbers up to about 16 through log2(dim) + 8 roundings of fp32, and RoPE's angles rounded to fp32 once.
        ExpectTile(h.Keys(block, 1), RotKeysRef(ref, page), form.dk, page.tokens, 64, 1,
                   16 * 16 * 0x1p-24);
        ExpectTile(h.Values(block, 1), RotValuesRef(ref, page), form.dv, page.tokens, 1, form.dv,
                   8 * 4 * 0x1p-24);
      }
    }
  }
}

// One scale per 64 coefficients takes its bytes and pays for them when parts of a vector differ.
TEST(Rot, GroupedScales) {
  CodecHarness grouped(Rot(3, {"g64"}, 192, 192)), plain(Rot(3, {}, 192, 192));
  EXPECT_EQ(grouped.codec().PageSize(0, 0).k, plain.codec().PageSize(0, 0).k + 2 * 64);
  const auto row = [](int64_t t, int, int i) {
    const unsigned random = static_cast<unsigned>(t * 7919 + i * 104729) * 2654435761u;
    return RoundHalf((i < 64 ? 8.0f : 0.5f) * (static_cast<int>(random >> 16 & 1023) - 512) /
                     256.0f);
  };
  for (CodecHarness* h : {&grouped, &plain}) {
    h->SetRows(256, row, row);
    h->FreezeState();
    ASSERT_FALSE(h->EncodeAll());
  }
  // Blocks of 64 are rotated apart (192 = 3 x 64), so two thirds of the vector are 16 times smaller.
  EXPECT_LT(ValueError(grouped).mse_ratio(), ValueError(plain).mse_ratio());
}

// F05: beyond the largest scale numbers are held at its edge and counted; nothing wraps.
TEST(Rot, F05_OutOfRangeIsCounted) {
  CodecHarness h(Rot(4, {"no-mean", "no-balance"}, 256, 256));
  const Hadamard transform(256);
  // Along one basis vector of T all energy of 256 channels of 65504 meets in one coefficient: 2^20.
  h.SetRows(
      128, [&](int64_t, int, int i) { return 65504.0f * transform.signs()[i]; },
      [](int64_t, int, int) { return 1.0f; });
  std::fill(h.key_rows().begin(), h.key_rows().end(), 0.0f);
  for (size_t i = 0; i < h.key_rows().size(); ++i)
    h.key_rows()[i] = 65504.0f * transform.signs()[i % 256];
  ASSERT_FALSE(h.EncodeAll());
  EXPECT_EQ(h.saturated(), 2 * (128 - 4));  // one coefficient of each key that is no sink, 2 heads
  for (const float x : h.Keys(1, 0)) EXPECT_TRUE(std::isfinite(x) && std::abs(x) < 0x1p20f);
}

}  // namespace
}  // namespace kvring
