// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/lloyd_max.h"

#include <algorithm>
#include <bit>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/lloyd_max.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef KVRING_CODEC_LLOYD_MAX_ONCE
#define KVRING_CODEC_LLOYD_MAX_ONCE
namespace kvring {

// The positive half of a table: nearest level of |u| is level[number of edges below it].
struct HalfTable {
  int edges = 0;
  float edge[7] = {};
  float level[8] = {};
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

// Sum of squares and largest magnitude of each lane.
void Moments(const float* y, int rows, float* squares, float* largest) {
  const DF d;
  for (int64_t l = 0; l < kLanes; l += Width()) {
    VF sum = hn::Zero(d), top = hn::Zero(d);
    for (int i = 0; i < rows; ++i) {
      const VF v = hn::LoadU(d, y + i * kLanes + l);
      sum = hn::Add(sum, hn::Mul(v, v));
      top = hn::Max(top, hn::Abs(v));
    }
    hn::StoreU(sum, d, squares + l);
    hn::StoreU(top, d, largest + l);
  }
}

template <int kEdges>
HWY_INLINE VF NearestLevel(const HalfTable& half, VF magnitude) {
  const DF d;
  VF level = hn::Set(d, half.level[0]);
  for (int j = 0; j < kEdges; ++j) {
    level = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, half.edge[j])),
                           hn::Set(d, half.level[j + 1]), level);
  }
  return level;
}

// One refinement: s = <y, t> / <t, t> with t the levels nearest to y / s.
template <int kEdges>
void Refine(const HalfTable& half, const float* y, int rows, float* scale) {
  const DF d;
  for (int64_t l = 0; l < kLanes; l += Width()) {
    const VF inverse = hn::Div(hn::Set(d, 1.0f), hn::LoadU(d, scale + l));
    VF yt = hn::Zero(d), tt = hn::Zero(d);
    for (int i = 0; i < rows; ++i) {
      const VF v = hn::Abs(hn::LoadU(d, y + i * kLanes + l));
      const VF t = NearestLevel<kEdges>(half, hn::Mul(v, inverse));
      yt = hn::Add(yt, hn::Mul(v, t));
      tt = hn::Add(tt, hn::Mul(t, t));
    }
    // A lane of zeros keeps a harmless positive scale; its byte is 0 whatever is found here.
    hn::StoreU(hn::Max(hn::Div(yt, tt), hn::Set(d, 1e-30f)), d, scale + l);
  }
}

// Codes at a fixed scale, and the squared error they leave.
template <int kEdges>
void Code(const HalfTable& half, const float* y, int rows, const float* scale, uint8_t* codes,
          float* error) {
  const DF d;
  const hn::Rebind<uint8_t, DI> d8;
  const VF middle = hn::Set(d, static_cast<float>(kEdges + 1));
  for (int64_t l = 0; l < kLanes; l += Width()) {
    const VF s = hn::LoadU(d, scale + l);
    const VF inverse = hn::Div(hn::Set(d, 1.0f), s);
    VF sum = hn::Zero(d);
    for (int i = 0; i < rows; ++i) {
      const VF v = hn::LoadU(d, y + i * kLanes + l);
      const VF u = hn::Mul(hn::Abs(v), inverse);
      VF level = hn::Set(d, half.level[0]), index = hn::Zero(d);
      for (int j = 0; j < kEdges; ++j) {
        const auto above = hn::Gt(u, hn::Set(d, half.edge[j]));
        level = hn::IfThenElse(above, hn::Set(d, half.level[j + 1]), level);
        index = hn::IfThenElse(above, hn::Set(d, static_cast<float>(j + 1)), index);
      }
      const VF rest = hn::Sub(hn::Abs(v), hn::Mul(s, level));
      sum = hn::Add(sum, hn::Mul(rest, rest));
      const auto negative = hn::Lt(v, hn::Zero(d));
      const VF code = hn::IfThenElse(negative, hn::Sub(hn::Sub(middle, index), hn::Set(d, 1.0f)),
                                     hn::Add(middle, index));
      hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(DI(), code)), d8, codes + i * kLanes + l);
    }
    hn::StoreU(sum, d, error + l);
  }
}

// 8 bits: nearest integer of y / s as int8, and nothing to search.
void CodeBytes(const float* y, int rows, const float* scale, uint8_t* codes) {
  const DF d;
  const DI di;
  const hn::Rebind<uint8_t, DI> d8;
  for (int64_t l = 0; l < kLanes; l += Width()) {
    const VF inverse = hn::Div(hn::Set(d, 1.0f), hn::LoadU(d, scale + l));
    for (int i = 0; i < rows; ++i) {
      const VF u = hn::Mul(hn::LoadU(d, y + i * kLanes + l), inverse);
      const VF inside = hn::Max(hn::Set(d, -127.0f), hn::Min(u, hn::Set(d, 127.0f)));
      const auto byte = hn::And(hn::NearestInt(inside), hn::Set(di, 255));
      hn::StoreU(hn::DemoteTo(d8, byte), d8, codes + i * kLanes + l);
    }
  }
}

void RefineTarget(const HalfTable& half, const float* y, int rows, float* scale) {
  if (half.edges == 1) return Refine<1>(half, y, rows, scale);
  if (half.edges == 3) return Refine<3>(half, y, rows, scale);
  Refine<7>(half, y, rows, scale);
}

void CodeTarget(const HalfTable& half, const float* y, int rows, const float* scale, uint8_t* codes,
                float* error) {
  if (half.edges == 1) return Code<1>(half, y, rows, scale, codes, error);
  if (half.edges == 3) return Code<3>(half, y, rows, scale, codes, error);
  Code<7>(half, y, rows, scale, codes, error);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(Moments);
HWY_EXPORT(RefineTarget);
HWY_EXPORT(CodeTarget);
HWY_EXPORT(CodeBytes);

constexpr LloydMax kTables[] = {
    {2,
     1.51041756f / 127.0f,
     {-127, -38, 38, 127, -127, -38, 38, 127, -127, -38, 38, 127, -127, -38, 38, 127}},
    {3,
     2.15194571f / 127.0f,
     {-127, -79, -45, -14, 14, 45, 79, 127, -127, -79, -45, -14, 14, 45, 79, 127}},
    {4,
     2.73258957f / 127.0f,
     {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127}},
    {8, 1.0f, {}},
};

// 2^(i/8), and the borders 2^((i + 1/2)/8) between them.
constexpr float kEighths[] = {1.0f,        1.09050773f, 1.18920712f, 1.29683955f,
                              1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};
constexpr float kBorders[] = {1.04427378f, 1.13878863f, 1.24185781f, 1.35425555f,
                              1.47682615f, 1.61049033f, 1.75625216f, 1.91520656f};
constexpr int kScaleBias = 112;

// s = mantissa * 2^exponent with mantissa in [1, 2); the byte is 8 * exponent + steps + bias, kept in 1..255.
uint8_t ScaleByte(float s, const float (&borders)[8], bool inclusive) {
  if (s >= 0x1p100f) return 255;
  if (s < 0x1p-100f) return 1;
  const uint32_t bits = std::bit_cast<uint32_t>(s);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const float mantissa = std::bit_cast<float>((bits & 0x7fffffu) | 0x3f800000u);
  int steps = 0;
  for (const float border : borders) steps += inclusive ? mantissa >= border : mantissa > border;
  return static_cast<uint8_t>(std::clamp(8 * exponent + steps + kScaleBias, 1, 255));
}

HalfTable MakeHalf(const LloydMax& table) {
  const int half = 1 << (table.bits - 1);
  HalfTable made;
  made.edges = half - 1;
  for (int j = 0; j < half; ++j) made.level[j] = table.unit * table.level[half + j];
  for (int j = 0; j + 1 < half; ++j) {
    made.edge[j] = 0.5f * table.unit * (table.level[half + j] + table.level[half + j + 1]);
  }
  return made;
}

struct Lanes {
  float squares[kLanes], largest[kLanes];
};

// The byte of a lane and its scale; the exact zero of an all-zero lane is settled by the caller.
void RoundScales(const float* wanted, bool up, uint8_t* e, float* scale) {
  for (int l = 0; l < kLanes; ++l) {
    e[l] = up ? CeilScale(wanted[l]) : NearestScale(wanted[l]);
    scale[l] = ScaleValue(e[l]);
  }
}

void CopyLane(const uint8_t* from, int rows, int lane, uint8_t* to) {
  for (int i = 0; i < rows; ++i) to[i * kLanes + lane] = from[i * kLanes + lane];
}

void ZeroLane(int rows, int lane, uint8_t* codes, uint8_t* e) {
  for (int i = 0; i < rows; ++i) codes[i * kLanes + lane] = 0;
  e[lane] = 0;
}

// Coefficients that no scale reaches: only where the wanted scale is above the largest.
int32_t CountBeyond(const float* y, int rows, int lane, float reach) {
  int32_t count = 0;
  for (int i = 0; i < rows; ++i) count += std::fabs(y[i * kLanes + lane]) > reach;
  return count;
}

void CountSaturated(const float* y, int rows, const float* wanted, float largest_level,
                    int32_t* saturated) {
  const float top = ScaleValue(255);
  for (int l = 0; l < kLanes; ++l) {
    saturated[l] = wanted[l] > top ? CountBeyond(y, rows, l, top * largest_level) : 0;
  }
}

void EncodeBytes(const float* y, int rows, const Lanes& lanes, uint8_t* codes, uint8_t* e,
                 int32_t* saturated) {
  float wanted[kLanes], scale[kLanes];
  for (int l = 0; l < kLanes; ++l) wanted[l] = std::max(lanes.largest[l] / 127.0f, 1e-30f);
  RoundScales(wanted, true, e, scale);
  HWY_DYNAMIC_DISPATCH(CodeBytes)(y, rows, scale, codes);
  CountSaturated(y, rows, wanted, 127.0f, saturated);
  for (int l = 0; l < kLanes; ++l) {
    if (lanes.largest[l] == 0.0f) ZeroLane(rows, l, codes, e);
  }
}

}  // namespace

const LloydMax& LloydMaxTable(int bits) { return kTables[bits == 8 ? 3 : bits - 2]; }

float ScaleValue(uint8_t e) {
  if (e == 0) return 0.0f;
  const int eighths = e - kScaleBias + 128;  // positive, so that / and % round down
  const uint32_t power = static_cast<uint32_t>(eighths / 8 - 16 + 127) << 23;
  return kEighths[eighths % 8] * std::bit_cast<float>(power);
}

uint8_t NearestScale(float s) { return ScaleByte(s, kBorders, true); }

uint8_t CeilScale(float s) {
  // A step up at every eighth that the mantissa lies above.
  return ScaleByte(s, kEighths, false);
}

void EncodeLanes(const LloydMax& table, const float* y, int rows, uint8_t* codes, uint8_t* e,
                 int32_t* saturated) {
  Lanes lanes;
  HWY_DYNAMIC_DISPATCH(Moments)(y, rows, lanes.squares, lanes.largest);
  if (table.bits == 8) return EncodeBytes(y, rows, lanes, codes, e, saturated);
  const HalfTable half = MakeHalf(table);
  const float largest_level = half.level[half.edges];
  uint8_t other_codes[kMaxCodeRows * kLanes], other_e[kLanes];
  float wanted[2][kLanes], scale[kLanes], error[2][kLanes];
  for (int l = 0; l < kLanes; ++l) {
    wanted[0][l] = std::max(std::sqrt(lanes.squares[l] / static_cast<float>(rows)), 1e-30f);
    wanted[1][l] = std::max(lanes.largest[l] / largest_level, 1e-30f);
  }
  for (int start = 0; start < 2; ++start) {
    for (int round = 0; round < 3; ++round)
      HWY_DYNAMIC_DISPATCH(RefineTarget)(half, y, rows, wanted[start]);
    RoundScales(wanted[start], false, start == 0 ? e : other_e, scale);
    HWY_DYNAMIC_DISPATCH(CodeTarget)
    (half, y, rows, scale, start == 0 ? codes : other_codes, error[start]);
  }
  for (int l = 0; l < kLanes; ++l) {
    if (error[1][l] < error[0][l]) {
      CopyLane(other_codes, rows, l, codes);
      e[l] = other_e[l], error[0][l] = error[1][l], wanted[0][l] = wanted[1][l];
    }
  }
  CountSaturated(y, rows, wanted[0], largest_level, saturated);
  for (int l = 0; l < kLanes; ++l) {
    // Vectors below the smallest scale are nearer to zero than to any code.
    if (lanes.largest[l] == 0.0f || error[0][l] >= lanes.squares[l]) ZeroLane(rows, l, codes, e);
  }
}

}  // namespace kvring
#endif  // HWY_ONCE
