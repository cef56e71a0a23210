// SPDX-License-Identifier: Apache-2.0
// The worked examples of kvquant 10 (T1 is in bit_words_test.cc, its 2-bit word here), through the rules and the codec.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "kernels/codec/bit_words.h"
#include "kernels/codec/nuq_outliers.h"
#include "kernels/codec/nuq_rules.h"
#include "tests/kernels/codec/codec_harness.h"

namespace kvring {
namespace {

using testing::ElementsAre;

constexpr int kDim = 16;  // one head of the smallest size that codecs take
const std::vector<float> kCentroids = {-0.8f, -0.2f, 0.25f, 0.9f};

// One head of one layer with thresholds -1 and 1 in every channel and the examples' datatype, then `tensors`.
CodecCase ExampleCase(const std::string& name, std::vector<std::string> flags,
                      std::map<std::string, std::vector<float>> tensors) {
  CodecCase c;
  c.name = name;
  c.flags = std::move(flags);
  c.dk = c.dv = kDim, c.kv_heads = c.query_heads = 1;
  c.still = true;
  const KvShape shape{1, 1, 1, kDim, kDim, 64};
  std::map<std::string, std::vector<float>> all = {{"k_lo", std::vector<float>(kDim, -1.0f)},
                                                   {"k_hi", std::vector<float>(kDim, 1.0f)},
                                                   {"k_cent", kCentroids},
                                                   {"v_cent", kCentroids},
                                                   {"v_cent_token", kCentroids},
                                                   {"k_slots", {16}},
                                                   {"v_slots", {16}},
                                                   {"k_outliers", {0}},
                                                   {"v_outliers", {0}}};
  for (auto& [key, values] : tensors) all[key] = values;
  c.tables = WithNuqTensors(*TestNuqTables(shape, c.flags, name),
                            NuqTableId(name, ParseNuqTableOptions(c.flags)), all);
  return c;
}

float Zero(int64_t, int64_t, int) { return 0.0f; }

std::vector<float> KeyChannel(CodecHarness& h, int channel) {
  const std::vector<float> kt = h.Keys(0, 0);
  return {kt.begin() + channel * 64, kt.begin() + channel * 64 + h.tokens()};
}

TEST(NuqExamples, T1_TwoBitWord) {
  std::vector<uint8_t> codes(16);
  for (int i = 0; i < 16; ++i) codes[i] = i % 4;
  uint32_t word = 0;
  PackColumn(codes.data(), 16, 2, 0, 1, reinterpret_cast<uint8_t*>(&word));
  EXPECT_EQ(word, 0xE4E4E4E4u);
}

TEST(NuqExamples, T2_KeyChannel) {
  const float x[] = {2.5f, -0.9f, 3.0f, 3.4f, -1.5f};
  CodecCase c = ExampleCase(
      "nuq2-1%", {"sinks0"},
      {{"k_lo", std::vector<float>(kDim, -1.0f)}, {"k_hi", std::vector<float>(kDim, 3.0f)}});
  CodecHarness h(c);
  ASSERT_TRUE(h.ok()) << h.error();
  h.SetRows(
      5, [&](int64_t t, int64_t, int i) { return i == 3 ? x[t] : 1.0f; }, Zero);
  ASSERT_FALSE(h.EncodeAll());
  const int expected_codes[] = {3, 0, 3, 3, 0};
  for (int t = 0; t < 5; ++t)
    EXPECT_EQ(CodeAt(h.pages()[0].data(), 64, 2, 3, t), static_cast<uint32_t>(expected_codes[t]));
  const std::vector<float> restored = KeyChannel(h, 3);
  const float ulp =
      4 * 0x1p-23f;  // of the printed decimals' neighbours below 4: LUT entries are two roundings
  EXPECT_NEAR(restored[0], 2.8f, ulp);
  EXPECT_NEAR(restored[1], -0.6f, ulp);
  EXPECT_NEAR(restored[2], 2.8f, ulp);  // 3.0 is hi itself: an inlier, no residual
  EXPECT_NEAR(restored[3], 2.8f + 0.60009765625f, ulp);
  EXPECT_NEAR(restored[4], -0.6f - 0.89990234375f, ulp);
  // A residual against the middle of the range (convention (a) of 4.3) would restore 3.4 as 3.0.
  EXPECT_GT(std::abs(restored[3] - 3.0f), 0.39f);
  EXPECT_EQ(h.saturated(), 0);
  EXPECT_EQ(h.overflow(), 0);
}

// Without outliers in the name the same two numbers stay at the ends, and are counted.
TEST(NuqExamples, T2_DenseOnlySaturates) {
  const float x[] = {3.0f, 3.4f, -1.0f, -1.5f};
  CodecHarness h(
      ExampleCase("nuq2", {"sinks0"},
                  {{"k_hi", std::vector<float>(kDim, 3.0f)}, {"k_slots", {0}}, {"v_slots", {0}}}));
  ASSERT_TRUE(h.ok()) << h.error();
  h.SetRows(
      4, [&](int64_t t, int64_t, int i) { return i == 3 ? x[t] : 1.0f; }, Zero);
  ASSERT_FALSE(h.EncodeAll());
  const std::vector<float> restored = KeyChannel(h, 3);
  EXPECT_NEAR(restored[1], 2.8f, 4 * 0x1p-23f);
  EXPECT_EQ(restored[0], restored[1]);
  EXPECT_EQ(restored[2], restored[3]);
  EXPECT_EQ(h.saturated(), 2);
}

const std::vector<float> kToken = {0.1f, -0.4f, 0.3f, 5.0f, -0.2f, 0.0f, -6.0f, 0.5f};

int NearestCode(float x, const float* lut) {
  int best = 0;
  for (int j = 1; j < 4; ++j) {
    if (std::abs(x - lut[j]) < std::abs(x - lut[best])) best = j;
  }
  return best;
}

// Codes and residuals of kToken under one z, s: by the text of 4.2, apart from any codec.
struct Encoded {
  std::vector<int> codes;
  std::map<int, float> residuals;
  float lut[4];
};

Encoded EncodeExample(const Normalizer& n, const std::vector<int32_t>& outliers) {
  Encoded e;
  for (int j = 0; j < 4; ++j) e.lut[j] = n.s * kCentroids[j] + n.z;
  for (const float x : kToken) e.codes.push_back(NearestCode(x, e.lut));
  for (const int32_t i : outliers) e.residuals[i] = RoundHalf(kToken[i] - e.lut[e.codes[i]]);
  return e;
}

TEST(NuqExamples, T3_ValueTokenByTheRules) {
  std::vector<int32_t> outliers(2);
  SelectExtremes(kToken, 1, outliers.data());
  EXPECT_THAT(outliers, ElementsAre(3, 6));
  const ValueRange range = RangeWithout(kToken, outliers);
  EXPECT_EQ(range.lo, -0.4f);
  EXPECT_EQ(range.hi, 0.5f);
  const float decimals = 5e-7f;  // what is printed to 6 places
  for (const bool rounded : {false, true}) {
    const Normalizer n = rounded ? RoundedNormalizer(range) : ExactNormalizer(range.lo, range.hi);
    EXPECT_NEAR(n.z, rounded ? 0.04998779f : 0.05f, 1e-8f);
    EXPECT_NEAR(n.s, rounded ? 0.44995117f : 0.45f, 3e-8f);
    EXPECT_EQ(RoundHalf(n.z) == n.z && RoundHalf(n.s) == n.s, rounded);
    const Encoded e = EncodeExample(n, outliers);
    EXPECT_THAT(e.codes, ElementsAre(2, 0, 2, 3, 0, 1, 0, 3));
    EXPECT_EQ(e.residuals.at(3), 4.546875f);
    EXPECT_EQ(e.residuals.at(6), -5.69140625f);
    EXPECT_NEAR(e.lut[3] + 4.546875f, rounded ? 5.001819f : 5.001875f, decimals);
    EXPECT_NEAR(e.lut[0] - 5.69140625f, rounded ? -6.001379f : -6.001406f, decimals);
  }
}

// The example's 8 channels and 8 more between its lo and hi, as token 2 of a page: fp16-rounded z and s, every container and
// scope alike, since one head is all heads.
TEST(NuqExamples, T3_ValueTokenThroughTheCodec) {
  for (const std::vector<std::string>& form : std::vector<std::vector<std::string>>{
           {"sinks0"}, {"token", "sinks0"}, {"exact", "sinks0"}, {"paper", "sinks0"}}) {
    const CodecCase c = ExampleCase("nuq2-1%", form, {});
    CodecHarness h(c);
    ASSERT_TRUE(h.ok()) << h.error();
    h.SetRows(3, Zero, [&](int64_t, int64_t, int i) { return i < 8 ? kToken[i] : 0.05f; });
    // The harness rounds values to fp16; the example's own numbers are put back.
    for (int t = 0; t < 3; ++t) std::copy(kToken.begin(), kToken.end(), &h.value_rows()[t * kDim]);
    ASSERT_FALSE(h.EncodeAll());
    const uint8_t* const words = h.pages()[0].data() + h.codec().PageSize(0, 0).k;
    uint32_t packed = 0;
    for (int i = 0; i < 8; ++i) packed |= CodeAt(words, kDim, 2, 2, i) << (2 * i);
    EXPECT_EQ(packed, 0xC4E2u) << form[0];
    const std::vector<float> v = h.Values(0, 0);
    EXPECT_NEAR(v[2 * kDim + 3], 5.001819f, 5e-7f) << form[0];
    EXPECT_NEAR(v[2 * kDim + 6], -6.001379f, 5e-7f) << form[0];
    EXPECT_NEAR(v[2 * kDim + 7], 0.44995117f * 0.9f + 0.04998779f, 1e-7f) << form[0];
    EXPECT_EQ(h.saturated(), 0) << form[0];
  }
}

TEST(NuqExamples, T4_OutliersPerSide) {
  const struct {
    int64_t dim;
    int at_1, at_half, at_tenth;
  } table[] = {{4096, 21, 11, 3}, {1024, 6, 3, 1}, {5120, 26, 13, 3}, {8192, 41, 21, 5}};
  for (const auto& row : table) {
    EXPECT_EQ(OutliersPerSide(row.dim, 0.01), row.at_1) << row.dim;
    EXPECT_EQ(OutliersPerSide(row.dim, 0.005), row.at_half) << row.dim;
    EXPECT_EQ(OutliersPerSide(row.dim, 0.001), row.at_tenth) << row.dim;
    EXPECT_EQ(OutliersPerSide(row.dim, 0.0), 0) << row.dim;
  }
  // floor((f/2) D) + 1 where the product is a whole number, whatever its last bit in double is.
  for (int64_t k = 1; k <= 64; ++k) {
    EXPECT_EQ(OutliersPerSide(200 * k, 0.01), k + 1);
    EXPECT_EQ(OutliersPerSide(400 * k, 0.005), k + 1);
    EXPECT_EQ(OutliersPerSide(2000 * k, 0.001), k + 1);
  }
}

TEST(NuqExamples, T4_EqualValues) {
  const std::vector<float> x(1024, -7.5f);
  for (const int m : {1, 3, 6}) {
    std::vector<int32_t> outliers(2 * m, -1);
    SelectExtremes(x, m, outliers.data());
    // Ties fall to the lower channel: U is 0..m-1, W the next m.
    for (int i = 0; i < 2 * m; ++i) EXPECT_EQ(outliers[i], i);
    const Normalizer n = RoundedNormalizer(RangeWithout(x, outliers));
    EXPECT_EQ(n.s, 0.0f);
    EXPECT_EQ(n.z, -7.5f);
  }
}

// The exact container keeps 2m entries of every token, residuals of zero included: 4 bytes each.
TEST(NuqExamples, T4_EqualValuesThroughTheExactContainer) {
  CodecHarness h(ExampleCase("nuq2-1%", {"exact", "sinks0"}, {}));
  ASSERT_TRUE(h.ok()) << h.error();
  h.SetRows(10, Zero, [](int64_t, int64_t, int) { return -7.5f; });
  ASSERT_FALSE(h.EncodeAll());
  const int64_t fixed = h.codec().PageSize(0, 0).total();
  EXPECT_EQ(static_cast<int64_t>(h.pages()[0].size()), fixed + 10 * 2 * 4);
  for (int i = 0; i < 10 * kDim; ++i) EXPECT_EQ(h.Values(0, 0)[i], -7.5f);
  EXPECT_EQ(h.saturated(), 0);
}

// A datatype of one point per channel (s = 0) stores k = {1, 2, 3, 4} exactly; the tile at position 2 shows its rotation.
TEST(NuqExamples, T5_RotationOfStoredKeys) {
  std::vector<float> point(kDim, 0.5f);
  for (int i = 0; i < 4; ++i) point[i] = 1.0f + i;
  CodecCase c = ExampleCase("nuq2-1%", {"sinks0"}, {{"k_lo", point}, {"k_hi", point}});
  c.still = false;
  c.rotary = 4;
  c.pairing = RopePairing::kHalfSplit;
  CodecHarness h(c);
  ASSERT_TRUE(h.ok()) << h.error();
  h.SetRows(
      3, [&](int64_t, int64_t, int i) { return point[i]; }, Zero);
  ASSERT_FALSE(h.EncodeAll());
  const std::vector<float> kt = h.Keys(0, 0);
  const float rotated[] = {-3.144039f, 1.919605f, -0.339143f, 4.039197f};
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(kt[i * 64 + 2], rotated[i], 1e-6f);  // printed to 6 places, 4 roundings
  for (int i = 4; i < kDim; ++i) EXPECT_EQ(kt[i * 64 + 2], 0.5f);

  const auto turn = [&](std::vector<float> x, int64_t position) {
    float angles[4];
    RopeAngles(h.rope(), position, angles);
    RopeRotate(h.rope(), angles, x.data());
    return x;
  };
  std::vector<float> q(kDim, 0.0f);
  const float q4[] = {0.5f, -1.0f, 0.25f, 2.0f};
  std::copy_n(q4, 4, q.begin());
  const std::vector<float> at5 = turn(q, 5), at3 = turn(q, 3);
  double by_key = 0, by_formula = 0, shifted = 0;
  for (int i = 0; i < 4; ++i) {
    by_key += at5[i] * kt[i * 64 + 2];
    shifted += at3[i] * kt[i * 64 + 0];
    // 6.1: per stored channel; theta of the pair, sigma +1 in the first half.
    const double theta = h.rope().inv_freq[i % 2] * 2, sigma = i < 2 ? 1 : -1;
    by_formula +=
        double{point[i]} * (std::cos(theta) * at5[i] + sigma * std::sin(theta) * at5[(i + 2) % 4]);
  }
  for (const double score : {by_key, by_formula, shifted}) EXPECT_NEAR(score, 4.696246, 3e-6);
}

struct Moments {
  double mean = 0, deviation = 0;
};
Moments MomentsOf(const std::vector<float>& x) {
  Moments m;
  for (const float value : x) m.mean += value / x.size();
  for (const float value : x) m.deviation += (value - m.mean) * (value - m.mean) / x.size();
  m.deviation = std::sqrt(m.deviation);
  return m;
}

TEST(NuqExamples, T7_QNorm) {
  const std::vector<float> u = {-1.0f, -0.7f, -0.3f, -0.1f, 0.0f, 0.15f, 0.45f, 0.9f};
  const std::vector<float> cent = {-0.8f, -0.15f, 0.2f, 0.8f};
  std::vector<float> quantized;
  for (const float x : u) quantized.push_back(cent[NearestCode(x, cent.data())]);
  const Moments before = MomentsOf(u), after = MomentsOf(quantized);
  const double a = before.deviation / after.deviation, o = before.mean - a * after.mean;
  EXPECT_NEAR(a, 1.142315, 1e-6);
  EXPECT_NEAR(o, 0.046371, 1e-6);
  std::vector<float> decode;
  for (const float c : cent) decode.push_back(static_cast<float>(a * c + o));
  const float expected[] = {-0.867481f, -0.124976f, 0.274834f, 0.960223f};
  for (int j = 0; j < 4; ++j) EXPECT_NEAR(decode[j], expected[j], 1e-6f);

  // Thresholds -1 and 1: normalized units are the channel's own. Token 8 is nearer to centroid 0 but to decoded value 1;
  // token 9 is an outlier, whose residual is taken against the decoded value.
  std::vector<float> x = u;
  x.push_back(-0.48f);
  x.push_back(3.0f);
  CodecHarness h(
      ExampleCase("nuq2-1%", {"qnorm", "sinks0"}, {{"k_cent", cent}, {"k_decode", decode}}));
  ASSERT_TRUE(h.ok()) << h.error();
  h.SetRows(
      10, [&](int64_t t, int64_t, int i) { return i == 5 ? x[t] : 0.0f; }, Zero);
  ASSERT_FALSE(h.EncodeAll());
  std::vector<float> restored = KeyChannel(h, 5);
  EXPECT_NEAR(restored[8], expected[0], 1e-6f);
  EXPECT_NEAR(restored[9], 3.0f, 2.04f * 0x1p-11f);
  restored.resize(8);
  EXPECT_NEAR(MomentsOf(restored).mean, -0.075, 1e-6);
  EXPECT_NEAR(MomentsOf(restored).deviation, 0.567891, 1e-6);
}

TEST(NuqExamples, T8SlicesOfEqualNumbersOfEntries) {
  EXPECT_THAT(SliceStarts(std::vector<int32_t>{3, 0, 12, 5, 10}, 10), ElementsAre(0, 2, 4));
  EXPECT_THAT(SliceStarts(std::vector<int32_t>{0, 0, 0}, 10), ElementsAre());
  EXPECT_THAT(SliceStarts({}, 10), ElementsAre());
  // One token with every channel, then tokens without entries.
  EXPECT_THAT(SliceStarts(std::vector<int32_t>{0, 32, 0, 0}, 10), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(SliceStarts(std::vector<int32_t>{10, 10, 0}, 10), ElementsAre(0, 1));
}

}  // namespace
}  // namespace kvring
