// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/tc_levels.h"

#include <algorithm>
#include <cmath>

#include "kernels/codec/lloyd_max.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/tc_levels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef KVRING_CODEC_TC_LEVELS_ONCE
#define KVRING_CODEC_TC_LEVELS_ONCE
namespace kvring {

// The positive half of a table: |u| is nearest to level[number of edges below it].
struct TcHalf {
  int edges = 0;
  float edge[31] = {};
  float level[32] = {};
};

// Sums of one group, by lane.
struct TcSums {
  float a[kLanes], b[kLanes];
};

}  // namespace kvring
#endif

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kLanes>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;

HWY_INLINE int64_t Width() { return static_cast<int64_t>(hn::Lanes(DF())); }

// a = sum of z^2, b = sum of w z^2 over the rows of classes with bits.
void TcMoments(const TcGainGroup& group, const float* z, TcSums* sums) {
  const DF d;
  for (int64_t l = 0; l < kLanes; l += Width()) {
    VF plain = hn::Zero(d), weighted = hn::Zero(d);
    for (int i = 0; i < group.rows; ++i) {
      if (group.bits[i / kTcClass] == 0) continue;
      const VF v = hn::LoadU(d, z + i * kLanes + l);
      const VF square = hn::Mul(v, v);
      plain = hn::Add(plain, square);
      weighted = hn::Add(weighted, hn::Mul(hn::Set(d, group.weight[i]), square));
    }
    hn::StoreU(plain, d, sums->a + l);
    hn::StoreU(weighted, d, sums->b + l);
  }
}

HWY_INLINE VF NearestLevel(const TcHalf& half, VF magnitude) {
  const DF d;
  VF level = hn::Set(d, half.level[0]);
  for (int j = 0; j < half.edges; ++j) {
    level = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, half.edge[j])),
                           hn::Set(d, half.level[j + 1]), level);
  }
  return level;
}

// a = sum of w z c, b = sum of w c^2, c the levels nearest to z / gain.
void TcRefine(const TcGainGroup& group, const TcHalf* halves, const float* z, const float* gain,
              TcSums* sums) {
  const DF d;
  for (int64_t l = 0; l < kLanes; l += Width()) {
    const VF inverse = hn::Div(hn::Set(d, 1.0f), hn::LoadU(d, gain + l));
    VF zc = hn::Zero(d), cc = hn::Zero(d);
    for (int i = 0; i < group.rows; ++i) {
      const TcHalf& half = halves[group.bits[i / kTcClass]];
      if (half.level[0] == 0.0f) continue;
      const VF v = hn::Abs(hn::LoadU(d, z + i * kLanes + l));
      const VF c = NearestLevel(half, hn::Mul(v, inverse));
      const VF wc = hn::Mul(hn::Set(d, group.weight[i]), c);
      zc = hn::Add(zc, hn::Mul(wc, v));
      cc = hn::Add(cc, hn::Mul(wc, c));
    }
    hn::StoreU(zc, d, sums->a + l);
    hn::StoreU(cc, d, sums->b + l);
  }
}

// a = the weighted squared error that coding at a fixed gain leaves.
void TcError(const TcGainGroup& group, const TcHalf* halves, const float* z, const float* gain,
             TcSums* sums) {
  const DF d;
  for (int64_t l = 0; l < kLanes; l += Width()) {
    const VF g = hn::LoadU(d, gain + l);
    const VF inverse = hn::Div(hn::Set(d, 1.0f), g);
    VF error = hn::Zero(d);
    for (int i = 0; i < group.rows; ++i) {
      const TcHalf& half = halves[group.bits[i / kTcClass]];
      if (half.level[0] == 0.0f) continue;
      const VF v = hn::Abs(hn::LoadU(d, z + i * kLanes + l));
      const VF rest = hn::Sub(v, hn::Mul(g, NearestLevel(half, hn::Mul(v, inverse))));
      error = hn::Add(error, hn::Mul(hn::Set(d, group.weight[i]), hn::Mul(rest, rest)));
    }
    hn::StoreU(error, d, sums->a + l);
  }
}

// Codes at a fixed gain.
void TcCode(const TcGainGroup& group, const TcHalf* halves, const float* z, const float* gain,
            uint8_t* codes) {
  const DF d;
  const hn::Rebind<uint8_t, DI> d8;
  for (int64_t l = 0; l < kLanes; l += Width()) {
    const VF inverse = hn::Div(hn::Set(d, 1.0f), hn::LoadU(d, gain + l));
    for (int i = 0; i < group.rows; ++i) {
      const TcHalf& half = halves[group.bits[i / kTcClass]];
      if (half.level[0] == 0.0f) continue;
      const VF v = hn::LoadU(d, z + i * kLanes + l);
      const VF u = hn::Mul(hn::Abs(v), inverse);
      VF index = hn::Zero(d);
      for (int j = 0; j < half.edges; ++j) {
        index = hn::IfThenElse(hn::Gt(u, hn::Set(d, half.edge[j])),
                               hn::Set(d, static_cast<float>(j + 1)), index);
      }
      const VF middle = hn::Set(d, static_cast<float>(half.edges + 1));
      const VF code =
          hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Sub(hn::Sub(middle, index), hn::Set(d, 1.0f)),
                         hn::Add(middle, index));
      hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(DI(), code)), d8, codes + i * kLanes + l);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(TcMoments);
HWY_EXPORT(TcRefine);
HWY_EXPORT(TcError);
HWY_EXPORT(TcCode);

constexpr int kLargestLevel = 127;
constexpr float kLargest[] = {0.797884561f, 1.51041756f, 2.15194571f,
                              2.73258957f,  3.26073249f, 3.74410127f};
// Positive levels of 1..6 bits.
constexpr int8_t kPositive[6][32] = {
    {127},
    {38, 127},
    {14, 45, 79, 127},
    {6, 18, 31, 44, 58, 75, 96, 127},
    {3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127},
    {1,  3,  6,  8,  10, 13, 15, 17, 20, 22, 24, 27, 30, 32, 35,  38,
     40, 43, 46, 49, 53, 56, 60, 64, 68, 73, 78, 84, 91, 99, 110, 127}};

struct Tables {
  TcLevels levels[kTcMaxBits + 1];
  TcHalf halves[kTcMaxBits + 1];  // [0]: level[0] is 0, no code
};

Tables MakeTables() {
  Tables tables;
  for (int bits = 1; bits <= kTcMaxBits; ++bits) {
    TcLevels& levels = tables.levels[bits];
    TcHalf& half = tables.halves[bits];
    const int count = 1 << (bits - 1);
    levels.unit = kLargest[bits - 1] / kLargestLevel;
    half.edges = count - 1;
    for (int j = 0; j < count; ++j) {
      const int8_t level = kPositive[bits - 1][j];
      levels.level[count + j] = level;
      levels.level[count - 1 - j] = static_cast<int8_t>(-level);
      half.level[j] = levels.unit * static_cast<float>(level);
      if (j > 0) half.edge[j - 1] = 0.5f * levels.unit * (kPositive[bits - 1][j - 1] + level);
    }
    for (int c = 0; c < 2 * count; ++c) levels.number[c] = levels.unit * levels.level[c];
  }
  return tables;
}

const Tables& AllTables() {
  static const Tables tables = MakeTables();
  return tables;
}

int CodedRows(const TcGainGroup& group) {
  int rows = 0;
  for (int i = 0; i < group.rows; ++i) rows += group.bits[i / kTcClass] > 0;
  return rows;
}

// Coefficients of a lane that the gain does not reach: only where the wanted gain is above the largest.
int32_t CountBeyond(const TcGainGroup& group, const float* z, int lane, float gain) {
  int32_t count = 0;
  for (int i = 0; i < group.rows; ++i) {
    const int bits = group.bits[i / kTcClass];
    if (bits == 0) continue;
    const float reach = gain * TcLevelsOf(bits).unit * kLargestLevel;
    count += std::fabs(z[i * kLanes + lane]) > reach;
  }
  return count;
}

// Of the byte nearest to the wanted gain and two on either side, the one that leaves least error; of equals the nearest, the
// lower of two. With many levels the error is a ragged function of the gain: the best of five leaves 9 % less at 3 bits, 13 % at
// 4, than the nearest (normal coefficients, water-filling's bits).
void ChooseGain(const TcGainGroup& group, const float* z, const float* wanted, uint8_t* e,
                float* error) {
  uint8_t middle[kLanes];
  for (int l = 0; l < kLanes; ++l) middle[l] = NearestScale(wanted[l]);
  TcSums sums;
  for (const int step : {0, -1, 1, -2, 2}) {
    float gain[kLanes];
    uint8_t byte[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      byte[l] = static_cast<uint8_t>(std::clamp(middle[l] + step, 1, 255));
      gain[l] = ScaleValue(byte[l]);
    }
    HWY_DYNAMIC_DISPATCH(TcError)(group, AllTables().halves, z, gain, &sums);
    for (int l = 0; l < kLanes; ++l) {
      if (step != 0 && !(sums.a[l] < error[l])) continue;
      e[l] = byte[l];
      error[l] = sums.a[l];
    }
  }
}

void ZeroLane(const TcGainGroup& group, int lane, uint8_t* codes, uint8_t* e) {
  for (int i = 0; i < group.rows; ++i) codes[i * kLanes + lane] = 0;
  e[lane] = 0;
}

}  // namespace

const TcLevels& TcLevelsOf(int bits) { return AllTables().levels[bits]; }

void EncodeTcGroup(const TcGainGroup& group, const float* z, uint8_t* codes, uint8_t* e,
                   int32_t* saturated) {
  std::fill_n(e, kLanes, uint8_t{0});
  std::fill_n(saturated, kLanes, 0);
  const int rows = CodedRows(group);
  if (rows == 0) return;
  const TcHalf* const halves = AllTables().halves;
  TcSums moments, sums;
  HWY_DYNAMIC_DISPATCH(TcMoments)(group, z, &moments);
  float wanted[kLanes], gain[kLanes];
  // A lane of zeros keeps a harmless positive gain; its byte is 0 whatever is found here.
  for (int l = 0; l < kLanes; ++l)
    wanted[l] = std::max(std::sqrt(moments.a[l] / static_cast<float>(rows)), 1e-30f);
  for (int round = 0; round < 2; ++round) {
    HWY_DYNAMIC_DISPATCH(TcRefine)(group, halves, z, wanted, &sums);
    for (int l = 0; l < kLanes; ++l) wanted[l] = std::max(sums.a[l] / sums.b[l], 1e-30f);
  }
  float error[kLanes];
  ChooseGain(group, z, wanted, e, error);
  for (int l = 0; l < kLanes; ++l) gain[l] = ScaleValue(e[l]);
  HWY_DYNAMIC_DISPATCH(TcCode)(group, halves, z, gain, codes);
  const float top = ScaleValue(255);
  for (int l = 0; l < kLanes; ++l) {
    if (wanted[l] > top) saturated[l] = CountBeyond(group, z, l, top);
    if (moments.a[l] == 0.0f || error[l] >= moments.b[l]) ZeroLane(group, l, codes, e);
  }
}

}  // namespace kvring
#endif  // HWY_ONCE
