// SPDX-License-Identifier: Apache-2.0
// tc against its definition and the plain reading in double; what every codec must do is in codec_table_test.cc.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention.h"
#include "kernels/codec/lloyd_max.h"
#include "kernels/codec/tc_bits.h"
#include "kernels/codec/tc_levels.h"
#include "kernels/ref/tc_ref.h"
#include "tests/kernels/codec/codec_harness.h"
#include "tests/support/numeric.h"
#include "tests/support/tc_tables.h"

namespace kvring {
namespace {

struct Form {
  std::string name = "tc3";
  int dk = 64, dv = 64;
  RopePairing pairing = RopePairing::kInterleaved;
  float mean = 2.0f, uneven = 0.6f;
  bool adapt = false;
};

KvShape ShapeOf(const CodecCase& c) { return {1, c.query_heads, c.kv_heads, c.dk, c.dv, c.block}; }

CodecCase Case(const Form& form) {
  CodecCase c;
  c.name = form.name;
  c.dk = form.dk, c.dv = form.dv;
  c.pairing = form.pairing;
  if (form.adapt) c.flags = {"adapt"};
  c.tables = TestTcTables(ShapeOf(c), {.mean = form.mean, .uneven = form.uneven});
  return c;
}

// What the plain reading needs to know, from the tables alone.
TcPageRef RefOf(const CodecHarness& h, const std::string& name, int head) {
  const CodecCase& c = h.shape();
  const TcModel model(c.tables, ShapeOf(c));
  const TcModel::Bits bits = model.Allocate(ParseTcRate(name));
  TcPageRef ref;
  ref.block_tokens = c.block;
  ref.rope = &h.rope();
  ref.key = model.Key(0, head), ref.value = model.Value(0, head);
  ref.key_bits = bits.keys[head], ref.value_bits = bits.values[head];
  ref.state = h.State(head);
  return ref;
}

double AbsTimes(const std::vector<double>& x, const float* m, int j, int dim, bool transposed) {
  double sum = 0.0;
  for (int i = 0; i < dim; ++i)
    sum += std::fabs(x[i] * (transposed ? m[j * dim + i] : m[i * dim + j]));
  return sum;
}

// The most that fp32 may be off in a score: three chains of `dim` products (query, mean, score), each rounding relative to
// the magnitudes that go through it, and a few roundings of angles and scales.
double ScoreTolerance(const TcPageRef& ref, const std::vector<double>& q,
                      const std::vector<double>& key) {
  const int dim = ref.key.dim;
  std::vector<double> apart(dim);  // mean and code may cancel
  double mean = 0.0;
  for (int i = 0; i < dim; ++i) mean = std::max(mean, std::fabs(double{ref.key.mean[i]}));
  for (int i = 0; i < dim; ++i) apart[i] = std::fabs(key[i]) + 2 * mean;
  double magnitude = 0.0, query = 0.0, row = 0.0;
  for (int j = 0; j < dim; ++j) {
    const double a = AbsTimes(q, ref.key.inverse, j, dim, true);
    const double b = AbsTimes(apart, ref.key.basis, j, dim, false);
    magnitude += a * b;
    query += a * a, row += b * b;
  }
  const double plain = 4 * (dim + 4) * kUnitF32 * magnitude;
  if (ref.state == nullptr) return plain;
  // U is rounded to fp16, so U U^t misses the identity by at most two roundings times the norm of |U|.
  return 2 * plain + 2 * kUnitF16 * std::sqrt(dim * query * row);
}

TEST(Tc, ReadsAsThePlainReadingInDouble) {
  const Form forms[] = {{},
                        {"tc1.5"},
                        {"tc@5.7"},
                        {"tc@2.25", 80, 96, RopePairing::kHalfSplit},
                        {"tc2.5", 100, 16},
                        {"tc4", 192, 128},
                        {.name = "tc2", .adapt = true},
                        {.name = "tc3", .dk = 32, .dv = 80, .uneven = 0.9f, .adapt = true}};
  for (const Form& form : forms) {
    CodecHarness h(Case(form));
    ASSERT_TRUE(h.ok()) << h.error();
    h.MakeRows(form.adapt ? 600 : 150, 21, 1.0f);
    h.FreezeState();
    ASSERT_FALSE(h.EncodeAll());
    for (int head = 0; head < 2; ++head) {
      const TcPageRef ref = RefOf(h, form.name, head);
      for (const int64_t block : {int64_t{0}, int64_t{1}, form.adapt ? int64_t{9} : int64_t{2}}) {
        const PageView page = h.View(block, head);
        const std::vector<double> keys = TcKeysRef(ref, page), values = TcValuesRef(ref, page);
        const std::vector<float> kt = h.Keys(block, head);
        const std::vector<float> y = h.Values(block, head);
        std::vector<float> v = y, q = NormalFloats(form.dk, 22), packed(q);
        h.codec().PrepareQuery(0, head, ref.state, packed.data(), 1, packed.data());  // in place
        h.codec().FinishOutput(0, head, v.data(), 64);
        for (int t = 0; t < page.tokens; ++t) {
          const std::vector<double> key(&keys[t * form.dk], &keys[t * form.dk] + form.dk);
          double score = 0.0, expected = 0.0;
          for (int i = 0; i < form.dk; ++i) {
            score += double{packed[i]} * kt[i * 64 + t];
            expected += q[i] * key[i];
          }
          const std::vector<double> wide(q.begin(), q.end());
          ASSERT_NEAR(score, expected, ScoreTolerance(ref, wide, key)) << form.name << " " << t;
          for (int i = 0; i < form.dv; ++i) {
            // y is exact up to three roundings (adapt: and dv products more, of rows mixed by U), then dv products.
            double magnitude = 0.0;
            for (int j = 0; j < form.dv; ++j)
              magnitude +=
                  std::fabs(y[t * form.dv + j] * double{ref.value.inverse[j * form.dv + i]});
            ASSERT_NEAR(v[t * form.dv + i], values[t * form.dv + i],
                        (form.adapt ? 2 * std::sqrt(form.dv) : 1) * (form.dv + 4) * kUnitF32 *
                            (magnitude + std::fabs(values[t * form.dv + i])))
                << form.name << " " << t << " " << i;
          }
        }
      }
    }
  }
}

// What the codec stores is what its definition says: z in double, each coefficient at the level nearest to it.
TEST(Tc, CodesAreNearestToTheCoefficients) {
  const Form form{"tc3", 64, 64};
  CodecHarness h(Case(form));
  h.MakeRows(128, 23, 1.0f);
  ASSERT_FALSE(h.EncodeAll());
  for (int head = 0; head < 2; ++head) {
    const TcPageRef ref = RefOf(h, form.name, head);
    const PageView page = h.View(1, head);
    const uint8_t* const v_part = page.packed + h.codec().PageSize(0, head).k;
    std::vector<float> angles(64);
    for (int t = 0; t < 64; ++t) {
      std::vector<float> mean(ref.key.mean, ref.key.mean + 64);
      RopeAngles(h.rope(), 64 + t, angles.data());
      RopeRotate(h.rope(), angles.data(), mean.data());
      for (int i = 0; i < 64; ++i) {
        double y = 0.0, magnitude = 0.0;
        for (int c = 0; c < 64; ++c) {
          const double x = double{h.Key(64 + t, head)[c]} - mean[c];
          y += x * ref.key.basis[c * 64 + i];
          magnitude += (std::fabs(x) + 2 * std::fabs(mean[c])) *
                       std::fabs(double{ref.key.basis[c * 64 + i]});
        }
        const double deviation = std::sqrt(double{ref.key.lambda[i]});
        const int bits = ref.key_bits[i / 8];
        if (bits == 0) continue;
        const double code = TcCoefficientRef(ref.key_bits, page.packed, 64, t, i, true);
        const double gain = ScaleValue(page.packed[t]);
        double nearest = HUGE_VAL;
        for (int c = 0; c < 1 << bits; ++c)
          nearest = std::min(nearest, std::fabs(y / deviation - gain * TcLevelsOf(bits).number[c]));
        ASSERT_LE(std::fabs(y / deviation - code), nearest + 70 * kUnitF32 * magnitude / deviation)
            << t << " " << i;
        const float v = h.value_rows()[((64 + t) * 2 + head) * 64 + i];
        const double z = v / std::sqrt(double{ref.value.lambda[i]});
        const double stored = TcCoefficientRef(ref.value_bits, v_part, 64, t, i, false);
        const int v_bits = ref.value_bits[i / 8];
        for (int c = 0; v_bits > 0 && c < 1 << v_bits; ++c) {
          const double other = ScaleValue(v_part[t]) * TcLevelsOf(v_bits).number[c];
          // z, its quotient by the gain and the border between two levels are rounded, nine times in all.
          ASSERT_LE(std::fabs(z - stored),
                    std::fabs(z - other) + 2 * 9 * kUnitF32 * (std::fabs(z) + std::fabs(other)));
        }
      }
    }
  }
}

// The mean of all bits is the rate, to the byte: 160 classes make every tenth of a bit a whole number of them.
TEST(Tc, PageBytesAreTheRate) {
  const KvShape shape{2, 5, 5, 64, 64, 64};
  const RopeTable rope = MakeRopeTable(RopePairing::kInterleaved, 64, 64, 10000.0, {});
  CodecOptions options;
  options.shape = shape;
  options.rope = {&rope, &rope};
  options.tables = TestTcTables(shape, {.uneven = 0.9f, .sides = 1.0f});
  bool unequal = false;
  for (int tenths = 10; tenths <= 60; ++tenths) {
    const std::string name =
        "tc@" + std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
    const CodecRow* const row = FindCodec(name);
    ASSERT_NE(row, nullptr) << name;
    const CodecMade made = row->make(*row, options);
    ASSERT_NE(made.codec, nullptr) << made.error;
    int64_t bytes = 0;
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 5; ++head) {
        const PageBytes size = made.codec->PageSize(layer, head);
        bytes += size.total();
        unequal |= size.k != made.codec->PageSize(0, 0).k;
      }
    }
    // Codes of 1280 coefficients and 20 gains a token.
    EXPECT_EQ(bytes, 64 * (1280 * tenths / 80 + 20)) << name;
  }
  EXPECT_TRUE(unequal);
}

TEST(Tc, NamesOfRates) {
  EXPECT_EQ(FindCodec("tc@3"), FindCodec("tc3"));
  EXPECT_EQ(FindCodec("tc@2.50"), FindCodec("tc2.5"));
  ASSERT_NE(FindCodec("tc@2.3"), nullptr);
  EXPECT_STREQ(FindCodec("tc@2.3")->name, "tc@2.3");
  EXPECT_STREQ(FindCodec("tc@2.30")->name, "tc@2.3");
  EXPECT_STREQ(FindCodec("tc@1")->name, "tc@1");
  EXPECT_STREQ(FindCodec("tc@5.05")->name, "tc@5.05");
  EXPECT_TRUE(FindCodec("tc@2.3")->calibrated);
  for (const char* wrong : {"tc", "tc5", "tc@", "tc@0.99", "tc@6.1", "tc3.2", "tc@3:adapt"})
    EXPECT_EQ(FindCodec(wrong), nullptr) << wrong;
  CodecHarness h(Case({"tc@2.3"}));
  EXPECT_EQ(h.codec().traits().id, "tc@2.3");
}

// Where directions weigh unlike, bits go where they weigh most: the weighted error is what water-filling says, and far below
// that of equal bits.
TEST(Tc, ErrorIsWaterFillings) {
  CodecCase c = Case({"tc3", 64, 64, RopePairing::kInterleaved, 0.0f, 0.9f});
  CodecHarness h(c);
  h.MakeRows(512, 24, 0.0f);  // white, as the tables say
  ASSERT_FALSE(h.EncodeAll());
  double error = 0.0, expected = 0.0, equal = 0.0;
  for (int head = 0; head < 2; ++head) {
    const TcPageRef ref = RefOf(h, "tc3", head);
    for (int64_t block = 1; block < 8; ++block) {
      const std::vector<float> v = h.Values(block, head);
      for (int t = 0; t < 64; ++t) {
        for (int i = 0; i < 64; ++i) {
          const float y = h.value_rows()[((block * 64 + t) * 2 + head) * 64 + i];
          error += ref.value.weight * std::pow(double{y} - v[t * 64 + i], 2);
          expected += ref.value.weight * ref.value.lambda[i] * TcDistortion(ref.value_bits[i / 8]);
          equal += ref.value.weight * ref.value.lambda[i] * TcDistortion(3);
        }
      }
    }
  }
  // A gain fitted to 64 numbers follows their own size: it ends below theory, as rot does (GaussianErrorIsLloydMax), and its
  // byte costs up to 4 %.
  EXPECT_LT(error, 1.04 * expected);
  EXPECT_GT(error, 0.75 * expected);
  EXPECT_LT(error, 0.7 * equal);
}

TEST(Tc, ValueDomainAndBack) {
  for (const float uneven : {0.1f, 0.9f}) {
    CodecCase c = Case({"tc3", 64, 96, RopePairing::kInterleaved, 3.0f, uneven});
    CodecHarness h(c);
    const std::vector<float> v = NormalFloats(7 * 2 * 96, 25);
    std::vector<float> y = v;
    h.codec().ToValueDomain(0, y.data(), 7);
    for (int r = 0; r < 14; ++r) {
      std::vector<float> back(&y[r * 96], &y[r * 96] + 96);
      h.codec().FinishOutput(0, r % 2, back.data(), 1);
      // Two chains of 96 products; the basis' condition is (1 + uneven) / (1 - uneven), rows have length below 40.
      const double tolerance = 2 * 98 * kUnitF32 * 40 * (1 + uneven) / (1 - uneven);
      for (int i = 0; i < 96; ++i) EXPECT_NEAR(back[i], v[r * 96 + i], tolerance);
    }
  }
}

// out: attention of two rows over 200 keys and values, against the same in double.
void ExpectAttention(const TcPageRef& ref, const std::vector<float>& raw,
                     const std::vector<double>& keys, const std::vector<double>& values,
                     const std::vector<float>& out) {
  for (int r = 0; r < 2; ++r) {
    std::vector<double> weight(200), expected(64, 0.0);
    double total = 0.0, worst = 0.0;
    const std::vector<double> q(&raw[r * 64], &raw[r * 64] + 64);
    for (int t = 0; t < 200; ++t) {
      double logit = 0.0;
      const std::vector<double> key(&keys[t * 64], &keys[t * 64] + 64);
      for (int i = 0; i < 64; ++i) logit += q[i] * key[i];
      worst = std::max(worst, ScoreTolerance(ref, q, key));
      total += weight[t] = std::exp2(logit);
    }
    for (int t = 0; t < 200; ++t) {
      for (int i = 0; i < 64; ++i) expected[i] += weight[t] / total * values[t * 64 + i];
    }
    // Logits that are off by `worst` move weights by 2 ln 2 of it in all; values reach about 8; then 200 sums and 64 products.
    const double tolerance = 8 * (2 * std::log(2.0) * worst + (200 + 64) * 4 * kUnitF32);
    for (int i = 0; i < 64; ++i) EXPECT_NEAR(out[r * 64 + i], expected[i], tolerance) << i;
  }
}

// Decode over pages, sinks and exact rows against plain attention in double over what the pages stand for.
TEST(Tc, AttentionIsThatOfTheDecodedRows) {
  const Form form{"tc2.5", 64, 64, RopePairing::kHalfSplit};
  CodecHarness h(Case(form));
  h.MakeRows(200, 26, 1.0f);
  ASSERT_FALSE(h.EncodeAll());
  const int head = 1;
  const TcPageRef ref = RefOf(h, form.name, head);
  std::vector<PageView> pages;
  std::vector<double> keys, values;
  std::vector<Half> exact_k, exact_v, sink_k, sink_v;
  for (int64_t block = 0; block < 4; ++block) {
    PageView page = h.View(block, head);
    if (block == 0) {
      sink_k.assign(page.sink_k, page.sink_k + 4 * 64);
      sink_v.assign(page.sink_v, page.sink_v + 4 * 64);
      page.sink_k = sink_k.data(), page.sink_v = sink_v.data();
    }
    std::vector<double> k = TcKeysRef(ref, page), v = TcValuesRef(ref, page);
    if (block == 3) {  // the open block: exact rows, values in the value domain
      for (int t = 0; t < page.tokens; ++t) {
        for (int i = 0; i < 64; ++i) {
          exact_k.push_back(FloatToHalf(h.Key(192 + t, head)[i]));
          exact_v.push_back(FloatToHalf(h.value_rows()[((192 + t) * 2 + head) * 64 + i]));
          k[t * 64 + i] = h.Key(192 + t, head)[i];
        }
      }
      page.packed = nullptr;
      page.exact_k = exact_k.data(), page.exact_v = exact_v.data();
      page.exact_k_stride = page.exact_v_stride = 64;
      page.sink_k = exact_k.data(), page.sink_v = exact_v.data();
      page.sink_k_stride = page.sink_v_stride = 64;
      page.sinks = page.tokens;  // for the reference: rows as they are
      v = TcValuesRef(ref, page);
      page.sinks = 0;
    }
    pages.push_back(page);
    keys.insert(keys.end(), k.begin(), k.end());
    values.insert(values.end(), v.begin(), v.end());
  }
  std::vector<float> raw = NormalFloats(2 * 64, 27, 0.3f), packed(raw.size());
  const std::vector<int64_t> positions = {199, 199};
  h.codec().PrepareQuery(0, head, nullptr, raw.data(), 2, packed.data());
  AttendArgs args;
  args.codec = &h.codec();
  args.head = head;
  args.rope = &h.rope();
  args.dk = args.dv = 64;
  args.pages = pages;
  args.positions = positions;
  args.raw_q = raw.data(), args.packed_q = packed.data();
  args.rule = {Visibility::kPacked, 512};
  std::vector<float> storage(PartialFloats(2, 64)), out(2 * 64);
  const SoftmaxPartial partial = PartialAt(storage.data(), 2, 64);
  MakeEmpty(partial);
  AttendScratch scratch;
  AttendPages(args, scratch, partial);
  ASSERT_TRUE(Finalize(partial, out.data()));
  h.codec().FinishOutput(0, head, out.data(), 2);
  ExpectAttention(ref, raw, keys, values, out);
}

// Rows with a strong direction that the tables know nothing of.
void MakeSlantedRows(CodecHarness& h, int64_t tokens) {
  const std::vector<float> noise = NormalFloats(tokens * 2 * 64 * 2, 31);
  const auto slanted = [&](int64_t at, int i) {
    float common =
        0.0f;  // of four neighbours, so that one direction in four has most of the energy
    for (int c = i / 4 * 4; c < i / 4 * 4 + 4; ++c) common += noise[at + c];
    return RoundHalf(0.1f * noise[at + i] + common);
  };
  h.SetRows(
      tokens, [&](int64_t t, int head, int i) { return slanted((t * 2 + head) * 64, i); },
      [&](int64_t t, int head, int i) { return slanted((tokens * 2 + t * 2 + head) * 64, i); });
}

// Squared error of packed values in the value domain, where every unit costs the same.
double ValueDomainError(CodecHarness& h) {
  double error = 0.0;
  for (int64_t block = 1; (block + 1) * 64 <= h.tokens(); ++block) {
    for (int head = 0; head < 2; ++head) {
      const std::vector<float> v = h.Values(block, head);
      for (int t = 0; t < 64; ++t) {
        for (int i = 0; i < 64; ++i) {
          const float y = h.value_rows()[((block * 64 + t) * 2 + head) * 64 + i];
          error += std::pow(double{y} - v[t * 64 + i], 2);
        }
      }
    }
  }
  return error;
}

TEST(TcAdapt, FollowsTheSequence) {
  CodecCase c = Case({"tc2", 64, 64, RopePairing::kInterleaved, 0.0f, 0.9f});
  c.rope_base = 1e12;  // most planes hardly turn, so that keys keep their directions
  CodecCase adapted = c;
  adapted.flags = {"adapt"};
  CodecHarness plain(c), adapt(adapted);
  for (CodecHarness* h : {&plain, &adapt}) {
    MakeSlantedRows(*h, 1024);
    h->FreezeState();
    ASSERT_FALSE(h->EncodeAll());
  }
  EXPECT_EQ(adapt.codec().traits().id, "tc2:adapt");
  EXPECT_EQ(adapt.codec().traits().prefix_tokens, 512);
  EXPECT_EQ(adapt.codec().PageSize(0, 1).total(), plain.codec().PageSize(0, 1).total());
  // A quarter of the directions hold nearly everything, across those that the tables gave bits: turned, the first
  // coefficients have both the energy and the bits.
  EXPECT_LT(ValueDomainError(adapt), 0.7 * ValueDomainError(plain));
  EXPECT_LT(KeyError(adapt).mse_ratio(), KeyError(plain).mse_ratio());
}

// U and deviations against their definition, in double from the same rows: U^t M U is diag(deviation^2).
TEST(TcAdapt, StateDiagonalizesTheMixedCovariance) {
  CodecCase c = Case({.uneven = 0.5f, .adapt = true});
  CodecHarness h(c), pieces(c);
  for (CodecHarness* each : {&h, &pieces}) MakeSlantedRows(*each, 512);
  h.FreezeState();
  pieces.FreezeState(37);
  EXPECT_EQ(h.state(), pieces.state());
  const TcModel model(c.tables, ShapeOf(c));
  for (int head = 0; head < 2; ++head) {
    const TcSide& side = model.Value(0, head);
    const float* const u = h.State(head) + 64 * 64 + 64;
    const float* const deviation = u + 64 * 64;
    std::vector<double> m(64 * 64, 0.0);
    for (int t = 4; t < 512; ++t) {
      const float* const y = &h.value_rows()[(t * 2 + head) * 64];
      for (int i = 0; i < 64; ++i) {
        for (int j = 0; j < 64; ++j) m[i * 64 + j] += double{y[i]} * y[j] / 1020;
      }
    }
    for (int i = 0; i < 64; ++i) m[i * 65] += 512.0 * side.lambda[i] / 1020;
    const double largest = std::pow(double{deviation[0]}, 2);
    for (int a = 0; a < 64; ++a) {
      if (a > 0) {
        EXPECT_LE(deviation[a], deviation[a - 1]);
      }
      for (int b = 0; b < 64; b += 7) {
        double entry = 0.0;
        for (int i = 0; i < 64; ++i) {
          for (int j = 0; j < 64; ++j) entry += u[i * 64 + a] * m[i * 64 + j] * u[j * 64 + b];
        }
        const double want = a == b ? std::pow(double{deviation[a]}, 2) : 0.0;
        // Columns are rounded to fp16: each error is below 2^-11 of a column of length 1, and meets the largest variance.
        EXPECT_NEAR(entry, want, 4 * kUnitF16 * largest) << a << " " << b;
      }
    }
  }
}

TEST(TcAdapt, KeepsSidesThatAreRotations) {
  CodecCase c = Case({.adapt = true});
  c.tables = TestTcTables(ShapeOf(c), {.rotated_values = true});
  CodecHarness h(c);
  MakeSlantedRows(h, 512);
  h.FreezeState();
  const float* const u = h.State(0) + 64 * 64 + 64;
  for (int i = 0; i < 64 * 64; ++i) EXPECT_EQ(u[i], i / 64 == i % 64 ? 1.0f : 0.0f);
  EXPECT_NE(h.State(0)[0], 1.0f);  // keys are turned
}

TEST(TcAdapt, Flags) {
  CodecCase c = Case({});
  c.flags = {"static"};
  EXPECT_EQ(CodecHarness(c).codec().traits().id, "tc3");
  c.flags = {"static", "adapt"};
  EXPECT_NE(CodecHarness(c).error().find("exclude"), std::string::npos);
  c.flags = {"g64"};
  EXPECT_NE(CodecHarness(c).error().find("g64"), std::string::npos);
  CodecHarness unfrozen(Case({.adapt = true}));
  unfrozen.MakeRows(64, 1, 0.0f);
  EXPECT_TRUE(static_cast<bool>(unfrozen.EncodeAll()));
}

TEST(Tc, WrongTablesAreRefusedByName) {
  CodecCase c = Case({});
  const auto error_with = [&](const std::string& tensor, auto change) {
    auto tables = std::make_shared<CodecTables>(*c.tables);
    change(tables->tensors, tensor);
    CodecCase changed = c;
    changed.tables = tables;
    return CodecHarness(changed).error();
  };
  using Tensors = std::map<std::string, CodecTable>;
  const auto erase = [](Tensors& all, const std::string& name) { all.erase(name); };
  const auto shorten = [](Tensors& all, const std::string& name) { all[name].values.pop_back(); };
  const auto zero = [](Tensors& all, const std::string& name) { all[name].values[3] = 0.0f; };
  const auto nan = [](Tensors& all, const std::string& name) { all[name].values[3] = NAN; };
  EXPECT_NE(error_with("tc/k_mean", erase).find("'tc/k_mean'"), std::string::npos);
  EXPECT_NE(error_with("tc/v_basis", shorten).find("8191"), std::string::npos);
  EXPECT_NE(error_with("tc/v_lambda", zero).find("not positive"), std::string::npos);
  EXPECT_NE(error_with("tc/k_inverse", nan).find("'tc/k_inverse'"), std::string::npos);
  const CodecRow* const row = FindCodec("tc2");
  const CodecMade made = row->make(*row, {ShapeOf(c), {nullptr}, {}, nullptr});
  EXPECT_FALSE(made.error.empty());
}

}  // namespace
}  // namespace kvring
