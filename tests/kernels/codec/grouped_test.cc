// SPDX-License-Identifier: Apache-2.0
// int and nf against the plain reading in double, and their options.
#include <gtest/gtest.h>

#include "kernels/codec/grouped.h"
#include "kernels/ref/codec_ref.h"
#include "tests/kernels/codec/codec_harness.h"

namespace kvring {
namespace {

// The four 2-bit normal floats; quantiles of the normal distribution at .854, .677 over the first (tables.py).
const std::vector<double> kNf2 = {-1.0, 0.0, 0.435818165, 1.0};

struct GroupedForm {
  const char* name;
  std::vector<double> numbers;
  bool post_rope;
  int dk, dv;
};

TEST(Grouped, TilesMatchThePlainReading) {
  const std::vector<double> integers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const GroupedForm forms[] = {{"int4", integers, false, 64, 64},
                               {"int3", integers, true, 100, 80},
                               {"int2", integers, false, 192, 128},
                               {"nf2", kNf2, false, 64, 96}};
  for (const GroupedForm& form : forms) {
    CodecCase c;
    c.name = form.name, c.dk = form.dk, c.dv = form.dv;
    if (form.post_rope) c.flags = {"post-rope"};
    CodecHarness h(c);
    ASSERT_TRUE(h.ok()) << h.error();
    h.MakeRows(192, 21, 2.0f);
    for (const int64_t begin : {int64_t{0}, int64_t{1'048'576}}) {
      h.set_begin(begin);
      ASSERT_FALSE(h.EncodeAll());
      for (int64_t block : {0, 2}) {
        const PageView page = h.View(block, 1);
        const GroupedPageRef ref{form.name[std::string(form.name).size() - 1] - '0',
                                 64,
                                 form.dk,
                                 form.dv,
                                 form.post_rope ? nullptr : &h.rope(),
                                 form.numbers};
        const std::vector<double> keys = GroupedKeysRef(ref, page),
                                  values = GroupedValuesRef(ref, page);
        const std::vector<float> kt = h.Keys(block, 1), v = h.Values(block, 1);
        // Numbers up to about 8 through 8 roundings of fp32.
        for (int t = 0; t < 64; ++t) {
          for (int i = 0; i < form.dk; ++i)
            ASSERT_NEAR(kt[i * 64 + t], keys[t * form.dk + i], 8 * 8 * 0x1p-24);
          for (int i = 0; i < form.dv; ++i)
            ASSERT_NEAR(v[t * form.dv + i], values[t * form.dv + i], 8 * 8 * 0x1p-24);
        }
      }
    }
  }
}

// Sinks are outside the page's ranges: a first token 30 times the rest costs the others nothing.
TEST(Grouped, SinksDoNotWidenRanges) {
  CodecCase c;
  c.name = "int4";
  CodecHarness mild(c), wild(c);
  const auto value = [](int64_t, int, int) { return 1.0f; };
  mild.SetRows(
      64, [](int64_t t, int, int i) { return RoundHalf(std::cos(t * 3 + i)); }, value);
  wild.SetRows(
      64, [](int64_t t, int, int i) { return (t == 0 ? 30 : 1) * RoundHalf(std::cos(t * 3 + i)); },
      value);
  ASSERT_FALSE(mild.EncodeAll());
  ASSERT_FALSE(wild.EncodeAll());
  const std::vector<float> a = mild.Keys(0, 0), b = wild.Keys(0, 0);
  for (int t = 1; t < 64; ++t) {
    for (int i = 0; i < 64; ++i) ASSERT_EQ(a[i * 64 + t], b[i * 64 + t]);
  }
}

// Keys with a large constant per channel are what "before RoPE, per channel" is for.
TEST(Grouped, BeforeRopeBeatsAfterRopeOnBiasedKeys) {
  CodecCase before, after;
  before.name = after.name = "int3";
  after.flags = {"post-rope"};
  CodecHarness a(before), b(after);
  EXPECT_EQ(a.codec().traits().key_domain, KeyDomain::kPreRope);
  EXPECT_EQ(b.codec().traits().key_domain, KeyDomain::kPostRope);
  EXPECT_EQ(b.codec().traits().id, "int3:post-rope");
  for (CodecHarness* h : {&a, &b}) {
    h->MakeRows(512, 22, 4.0f);
    ASSERT_FALSE(h->EncodeAll());
  }
  EXPECT_LT(KeyError(a).value(), 0.7 * KeyError(b).value());
}

// Uniform codes: no value is further from its number than half a step, whatever the rounding of scale and offset to fp16.
TEST(Grouped, IntegerErrorIsHalfAStep) {
  CodecCase c;
  c.name = "int4";
  CodecHarness h(c);
  h.MakeRows(128, 23, 0.0f);
  ASSERT_FALSE(h.EncodeAll());
  const std::vector<float> v = h.Values(1, 0);
  for (int t = 0; t < 64; ++t) {
    const float* const x = h.Value(64 + t, 0);
    const auto [lo, hi] = std::minmax_element(x, x + 64);
    const float step = (*hi - *lo) / 15;
    for (int i = 0; i < 64; ++i)
      EXPECT_LE(std::abs(v[t * 64 + i] - x[i]), step * (0.5f + 16 * 0x1p-11f));
  }
}

}  // namespace
}  // namespace kvring
