// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/tc_calibrator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>

#include "kernels/codec/tc_bits.h"
#include "kernels/codec/tc_model.h"
#include "kernels/parallel.h"
#include "runtime/calibrate/tc_basis.h"
#include "runtime/calibrate/tc_moments.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

// The rows of tests/golden/calibrate/tc.py.
constexpr int kDim = 8, kWindow = 32, kWindows = 2, kServed = 96;

float Noise(uint32_t i) {
  i *= 2654435761u;
  i ^= i >> 15;
  i *= 2246822519u;
  return (static_cast<int>(i >> 13 & 1023) - 512) / 256.0f;
}

struct Text {
  std::vector<float> k, v, dk, dv;  // [windows][rows][8]
};

std::vector<float> Rows(uint32_t seed) {
  std::vector<float> x(kWindows * kWindow * kDim);
  for (size_t i = 0; i < x.size(); ++i) {
    const int c = static_cast<int>(i % kDim);
    x[i] = Noise(seed + i) * (1 + c % 3) / 2 + (c % 5 - 2);
    if (c >= kDim / 2) x[i] += x[i - kDim / 2];
  }
  return x;
}

std::vector<float> Gradients(uint32_t seed) {
  std::vector<float> g(kWindows * kWindow * kDim);
  for (size_t i = 0; i < g.size(); ++i) g[i] = Noise(seed + i) * (1 + i % kDim) / 4096;
  return g;
}

Text GoldenText() { return {Rows(1000), Rows(5000), Gradients(3000), Gradients(7000)}; }

class TinyCalibration {
 public:
  explicit TinyCalibration(std::vector<int> texts = {0, 1}) {
    rope_ = MakeRopeTable(RopePairing::kInterleaved, kDim, kDim, 10000.0, {});
    options_.shape = {1, 1, 1, kDim, kDim, 16};
    options_.rope = {&rope_};
    options_.window = kWindow;
    options_.served_context = kServed;
    options_.text_of_window = std::move(texts);
  }

  // Pass 2 of an update has no gradients.
  absl::Status Run(const Text& text) {
    KVRING_ASSIGN_OR_RETURN(const auto calibrator, TcCalibrator::Create(options_));
    const auto layer = [&](int w, bool gradients) {
      const int64_t at = int64_t{w} * kWindow * kDim;
      LayerGradients rows{0, kWindow, &text.k[at], &text.v[at], nullptr, nullptr};
      if (gradients) rows.dk = &text.dk[at], rows.dv = &text.dv[at];
      return rows;
    };
    for (int w = 0; w < kWindows; ++w) calibrator->ObserveForward(layer(w, false));
    KVRING_RETURN_IF_ERROR(calibrator->FinishForward());
    for (int w = 0; w < kWindows; ++w)
      calibrator->ObserveBackward(layer(w, options_.keep == nullptr));
    KVRING_RETURN_IF_ERROR(calibrator->Finish(tables_, {}));
    notes_ = calibrator->notes();
    EXPECT_GT(calibrator->bytes(), 0);
    return absl::OkStatus();
  }

  TcCalibratorOptions& options() { return options_; }
  const CodecTables& tables() const { return tables_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<float>& Of(const std::string& name) const {
    return tables_.Find("tc/" + name)->values;
  }

 private:
  RopeTable rope_;
  TcCalibratorOptions options_;
  CodecTables tables_;
  std::vector<std::string> notes_;
};

TEST(TcCalibrator, IsThatOfNumpy) {
  TinyCalibration tiny({0, 0});
  ASSERT_TRUE(tiny.Run(GoldenText()).ok());
  std::ifstream file("tests/golden/calibrate/tc.txt");
  std::string name;
  size_t count = 0;
  int tensors = 0;
  while (file >> name >> count) {
    const std::vector<float>& got = tiny.Of(name);
    ASSERT_EQ(got.size(), count) << name;
    for (size_t i = 0; i < count; ++i) {
      double want = 0.0;
      file >> want;
      // The same numbers in double; angles, turned rows and what is stored are fp32. Eigenvectors move by the rounding times
      // the largest over the gap between eigenvalues, here below 40; weights are of order 10^-7.
      const double size = std::max(std::fabs(want), name.ends_with("weight") ? 0.0 : 1.0);
      EXPECT_NEAR(got[i], want, 40 * 8 * kUnitF32 * size) << name << " " << i;
    }
    ++tensors;
  }
  EXPECT_EQ(tensors, 10);
  EXPECT_EQ(tiny.Of("k_rot"), std::vector<float>{0.0f});
  EXPECT_EQ(tiny.Of("served_context"), std::vector<float>{96.0f});
  EXPECT_EQ(tiny.notes().size(), 1u);  // one text: nothing was left out
  KvShape shape = tiny.options().shape;
  EXPECT_EQ(TcModel::Check(tiny.tables(), shape), "");
}

// What the basis is for: coefficients without correlation, variances lambda; and the inverse brings rows back.
TEST(TcCalibrator, CoefficientsAreUncorrelated) {
  TinyCalibration tiny({0, 0});
  const Text text = GoldenText();
  ASSERT_TRUE(tiny.Run(text).ok());
  std::vector<double> sum(kDim * kDim, 0.0);
  const int rows = kWindows * (kWindow - 4);
  for (int w = 0; w < kWindows; ++w) {
    for (int r = 4; r < kWindow; ++r) {
      double y[kDim] = {}, centred[kDim];
      for (int i = 0; i < kDim; ++i) {
        const float x = HalfToFloat(FloatToHalf(text.v[(w * kWindow + r) * kDim + i]));
        centred[i] = double{x} - tiny.Of("v_mean")[i];
        for (int j = 0; j < kDim; ++j) y[j] += centred[i] * tiny.Of("v_basis")[i * kDim + j];
      }
      for (int i = 0; i < kDim; ++i) {
        double back = 0.0;
        for (int j = 0; j < kDim; ++j) back += y[j] * tiny.Of("v_inverse")[j * kDim + i];
        EXPECT_NEAR(back, centred[i], 1e-5);  // entries of both matrices are rounded to fp32
        for (int j = 0; j < kDim; ++j) sum[i * kDim + j] += y[i] * y[j] / rows;
      }
    }
  }
  const double largest = tiny.Of("v_lambda")[0];
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      const double want = i == j ? tiny.Of("v_lambda")[i] : 0.0;
      EXPECT_NEAR(sum[i * kDim + j], want, 1e-5 * largest) << i << " " << j;
    }
  }
}

TEST(TcCalibrator, SameBytesOnAnyNumberOfThreads) {
  std::vector<CodecTables> tables;
  for (const int threads : {1, 2, 3}) {
    SetThreads(threads);
    TinyCalibration tiny;
    ASSERT_TRUE(tiny.Run(GoldenText()).ok());
    tables.push_back(tiny.tables());
  }
  SetThreads(1);
  for (const auto& [name, table] : tables[0].tensors) {
    for (size_t i = 1; i < tables.size(); ++i)
      EXPECT_TRUE(SameBits(tables[i].Find(name)->values, table.values)) << name;
  }
}

// Two texts that agree keep tc; when the energy of values lies in other directions in each text, a plain rotation is safer.
TEST(TcCalibrator, RotationWhereTextsDisagree) {
  TinyCalibration agree, differ;
  Text text = GoldenText();
  ASSERT_TRUE(agree.Run(text).ok());
  EXPECT_EQ(agree.Of("v_rot"), std::vector<float>{0.0f});
  for (int w = 0; w < kWindows; ++w) {
    for (int r = 0; r < kWindow; ++r) {
      for (int c = 0; c < kDim; ++c) {
        const float size = (c < 4) == (w == 0) ? 4.0f : 0x1p-6f;
        text.v[(w * kWindow + r) * kDim + c] = size * Noise(900 + (w * kWindow + r) * kDim + c);
      }
    }
  }
  ASSERT_TRUE(differ.Run(text).ok());
  EXPECT_EQ(differ.Of("v_rot"), std::vector<float>{1.0f});
  for (int i = 0; i < kDim; ++i) {
    EXPECT_EQ(differ.Of("v_mean")[i], 0.0f);  // values of rot are not centred
    EXPECT_EQ(differ.Of("v_lambda")[i], differ.Of("v_lambda")[0]);
  }
  for (const float x : differ.Of("v_basis")) EXPECT_NEAR(std::fabs(x), std::sqrt(1.0 / 8), 1e-7);
  EXPECT_NE(differ.notes()[0].find("1 of 1 heads' values"), std::string::npos) << differ.notes()[0];
}

// Tables of `text` with the metric of `earlier`.
std::unique_ptr<TinyCalibration> Updated(const TinyCalibration& earlier, const Text& text) {
  auto tiny = std::make_unique<TinyCalibration>(std::vector<int>{0, 0});
  tiny->options().keep = std::make_shared<const TcModel>(
      std::make_shared<const CodecTables>(earlier.tables()), tiny->options().shape);
  EXPECT_TRUE(tiny->Run(text).ok());
  return tiny;
}

// A A^T of a side.
std::vector<double> MetricOf(const TinyCalibration& tiny, const std::string& side) {
  const std::vector<float>& a = tiny.Of(side + "_basis");
  std::vector<double> metric(kDim * kDim, 0.0);
  for (int i = 0; i < kDim * kDim; ++i) {
    for (int m = 0; m < kDim; ++m)
      metric[i] += double{a[i / kDim * kDim + m]} * a[i % kDim * kDim + m];
  }
  return metric;
}

// The metric comes back from a basis in fp32: entries are off by two roundings of rows that are at most sqrt(kDim) long, its root
// by 1 / (2 sqrt(ridge)) = 2.3 times that, and eigenvectors, as against numpy, by 40 times that.
TEST(TcUpdate, TheSameTextGivesTheSameTables) {
  TinyCalibration first({0, 0});
  ASSERT_TRUE(first.Run(GoldenText()).ok());
  const auto again = Updated(first, GoldenText());
  for (const auto& [name, table] : first.tables().tensors) {
    const std::vector<float>& got = again->tables().Find(name)->values;
    ASSERT_EQ(got.size(), table.values.size()) << name;
    const bool derived =
        name.ends_with("basis") || name.ends_with("inverse") || name.ends_with("lambda");
    if (!derived) {
      EXPECT_TRUE(SameBits(got, table.values)) << name;
    }
    for (size_t i = 0; i < got.size(); ++i) {
      const double size = std::max(1.0, std::fabs(double{table.values[i]}));
      EXPECT_NEAR(got[i], table.values[i], 40 * 2.3 * 2 * kDim * kUnitF32 * size)
          << name << " " << i;
    }
  }
  EXPECT_NE(again->notes()[0].find("the metric is kept"), std::string::npos) << again->notes()[0];
}

TEST(TcUpdate, OtherTextMovesTheCovarianceAndKeepsTheMetric) {
  TinyCalibration first({0, 0}), other({0, 0});
  ASSERT_TRUE(first.Run(GoldenText()).ok());
  Text text{Rows(11000), Rows(15000), Gradients(13000), Gradients(17000)};
  for (size_t i = 0; i < text.v.size(); i += 3) text.v[i] *= 3;
  ASSERT_TRUE(other.Run(text).ok());
  const auto updated = Updated(first, text);
  EXPECT_EQ(TcModel::Check(updated->tables(), updated->options().shape), "");
  for (const std::string side : {"k", "v"}) {
    EXPECT_TRUE(SameBits(updated->Of(side + "_mean"), other.Of(side + "_mean")));
    EXPECT_TRUE(SameBits(updated->Of(side + "_weight"), first.Of(side + "_weight")));
    EXPECT_GT(std::fabs(updated->Of(side + "_lambda")[0] - first.Of(side + "_lambda")[0]), 0.1);
    const std::vector<double> before = MetricOf(first, side), after = MetricOf(*updated, side);
    for (int i = 0; i < kDim * kDim; ++i)
      EXPECT_NEAR(after[i], before[i], 2.3 * 4 * kDim * kUnitF32 * kDim) << side << " " << i;
    // The covariance is that of the other text: S = A^-T diag(lambda) A^-1 by either metric.
    for (int i = 0; i < kDim * kDim; ++i) {
      double of_updated = 0.0, of_other = 0.0;
      const auto term = [&](const TinyCalibration& t, int m) {
        const std::vector<float>& inverse = t.Of(side + "_inverse");
        return double{inverse[m * kDim + i / kDim]} * t.Of(side + "_lambda")[m] *
               inverse[m * kDim + i % kDim];
      };
      for (int m = 0; m < kDim; ++m) {
        of_updated += term(*updated, m);
        of_other += term(other, m);
      }
      // Products of fp32 numbers; inverses are at most 1 / sqrt(ridge) = 4.5 long.
      EXPECT_NEAR(of_updated, of_other, 4.5 * 4.5 * 16 * kUnitF32 * other.Of(side + "_lambda")[0]);
    }
  }
}

TEST(TcUpdate, RotationsStayWithTheirBalance) {
  TinyCalibration first({0, 0});
  ASSERT_TRUE(first.Run(GoldenText()).ok());
  TcMatrices side;
  side.dim = kDim;
  side.mean.assign(kDim, 0.5);
  side.covariance.assign(kDim * kDim, 0.0);
  side.metric = side.covariance;
  for (int i = 0; i < kDim; ++i) {
    side.covariance[i * (kDim + 1)] = 1.0 + i;
    side.metric[i * (kDim + 1)] = 1.0 / (1 + i);
  }
  for (const bool keys : {true, false}) {
    const TcBasis rotation = MakeRotationBasis(side, keys ? first.options().rope[0] : nullptr);
    TcSide earlier{kDim,
                   rotation.mean.data(),
                   rotation.basis.data(),
                   rotation.inverse.data(),
                   rotation.lambda.data(),
                   rotation.weight,
                   true};
    const TcBasis same = RemakeBasis(earlier, side, keys);
    EXPECT_TRUE(same.rotated);
    EXPECT_TRUE(SameBits(same.mean, rotation.mean));
    EXPECT_TRUE(SameBits(same.basis, rotation.basis));
    EXPECT_EQ(same.weight, rotation.weight);
    // The balance is read back from rows of 8 numbers in fp32.
    EXPECT_NEAR(same.lambda[3] / rotation.lambda[3], 1.0, 8 * kUnitF32);
    TcMatrices louder = side;
    for (double& x : louder.covariance) x *= 4;
    for (double& x : louder.mean) x *= 2;
    const TcBasis moved = RemakeBasis(earlier, louder, keys);
    EXPECT_TRUE(SameBits(moved.basis, rotation.basis));
    EXPECT_NEAR(moved.lambda[0] / rotation.lambda[0], 4.0, 4 * 8 * kUnitF32);
    EXPECT_EQ(moved.mean[2], keys ? 1.0f : 0.0f);
  }
}

TEST(TcCalibrator, BadNumbersAndShapesAreRefused) {
  Text text = GoldenText();
  text.v[100] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(TinyCalibration().Run(text).ToString().find("value of layer 0, channel 4, token 12"),
            std::string::npos);
  text = GoldenText();
  text.dk[300] = std::numeric_limits<float>::infinity();
  EXPECT_NE(TinyCalibration().Run(text).ToString().find("gradient of a key"), std::string::npos);
  TinyCalibration few;
  few.options().window = 10;
  EXPECT_EQ(few.Run(GoldenText()).code(), absl::StatusCode::kInvalidArgument);
}

// Without gradient, or without any spread, tables are still ones that the codec takes.
TEST(TcCalibrator, SilentAndConstantSides) {
  Text text = GoldenText();
  std::fill(text.dv.begin(), text.dv.end(), 0.0f);
  std::fill(text.k.begin(), text.k.end(), 1.5f);
  TinyCalibration tiny;
  ASSERT_TRUE(tiny.Run(text).ok());
  EXPECT_EQ(TcModel::Check(tiny.tables(), tiny.options().shape), "");
  EXPECT_EQ(tiny.Of("v_weight")[0], 0.0f);
  EXPECT_NE(tiny.notes()[0].find("no gradient"), std::string::npos);
}

TEST(TcCalibrator, NamesAndPositions) {
  for (const char* name : {"tc", "tc3", "tc@2.3", "tc2:adapt"})
    EXPECT_TRUE(TcCalibrator::Makes(name));
  for (const char* name : {"tcx", "nuq3", "rot4", ""}) EXPECT_FALSE(TcCalibrator::Makes(name));
  EXPECT_EQ(ServedPosition(7, 3, 2048, 16, 2048), 7);
  EXPECT_EQ(ServedPosition(7, 3, 2048, 16, 100), 7);
  // Four times the window: rows lie four apart, and 16 windows fill the gaps between them.
  EXPECT_EQ(ServedPosition(7, 0, 2048, 16, 8192), 28);
  EXPECT_EQ(ServedPosition(7, 4, 2048, 16, 8192), 29);
  EXPECT_EQ(ServedPosition(2047, 15, 2048, 16, 8192), 8191);
}

// The longest gradients count with the length of the longest that is not among them, whatever order they come in.
TEST(TcMoments, LongGradientsAreShortened) {
  constexpr int kRows = 6000;  // 3 of them
  const std::vector<float> x = NormalFloats(kRows * 4, 1);
  std::vector<float> g = NormalFloats(kRows * 4, 2);
  for (const int long_row : {17, 4000, 5999}) {
    for (int i = 0; i < 4; ++i) g[long_row * 4 + i] *= 1000;
  }
  std::vector<double> lengths;
  for (int r = 0; r < kRows; ++r) {
    double square = 0;
    for (int i = 0; i < 4; ++i) square += double{g[r * 4 + i]} * g[r * 4 + i];
    lengths.push_back(std::sqrt(square));
  }
  std::vector<double> sorted = lengths;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::vector<double> metric(16, 0.0), covariance(16, 0.0);
  for (int r = 0; r < kRows; ++r) {
    const double factor = std::min(1.0, sorted[3] / lengths[r]);
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) {
        metric[i * 4 + j] += factor * factor * g[r * 4 + i] * g[r * 4 + j] / kRows;
        covariance[i * 4 + j] += double{x[r * 4 + i]} * x[r * 4 + j] / kRows;
      }
    }
  }
  TcMoments moments(4, 2, kRows);
  for (int r = 0; r < kRows; r += 500) moments.Add(r / 3000, &x[r * 4], &g[r * 4], 500);
  moments.Finish();
  for (int i = 0; i < 16; ++i) {
    // Sums of 6000 products of order 1 in another order.
    EXPECT_NEAR(moments.Metric(-1)[i], metric[i], 1e-12);
    EXPECT_NEAR(moments.Covariance(-1)[i], covariance[i], 1e-12);
    EXPECT_NEAR((moments.MetricOf(0)[i] + moments.MetricOf(1)[i]) / 2, metric[i], 1e-12);
    EXPECT_EQ(moments.Covariance(1)[i], moments.CovarianceOf(0)[i]);
  }
  EXPECT_EQ(TcClippedCount(32704), 16);
}

// Water-filling at the basis' own variances is what ExpectedLoss counts for a text like the calibration.
TEST(TcBasis, ExpectedLossOfTheSameTextIsDistortion) {
  TcMatrices side;
  side.dim = 64;
  side.mean.assign(64, 1.0);
  side.covariance.assign(64 * 64, 0.0);
  side.metric = side.covariance;
  for (int i = 0; i < 64; ++i) {
    side.covariance[i * 65] = std::exp2(-i / 4.0);
    side.metric[i * 65] = 1e-6;
  }
  const TcBasis basis = MakeTcBasis(side);
  EXPECT_EQ(CheckBasis(basis, 64), "");
  std::vector<double> energy(8, 0.0);
  for (int i = 0; i < 64; ++i) energy[i / 8] += side.covariance[i * 65];
  const std::vector<uint8_t> bits = WaterFill(energy, 16);
  double want = 0.0;
  for (int c = 0; c < 8; ++c) want += 1e-6 * energy[c] * TcDistortion(bits[c]);
  // int8 levels and a sum of 400 steps instead of the integral: a few percent at 5 and 6 bits.
  EXPECT_NEAR(ExpectedLoss(basis, side, 2.0) / want, 1.0, 0.08);
  TcBasis broken = basis;
  broken.inverse[5] += 0.01f;
  EXPECT_NE(CheckBasis(broken, 64), "");
}

}  // namespace
}  // namespace kvring
