// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/tc_ref.h"

#include <cmath>

#include "kernels/ref/trellis_ref.h"

namespace kvring {
namespace {

// Positive levels of the 1..6 bit tables, as tests/golden/codec/tables.py prints them.
int LevelRef(int bits, int code) {
  static const std::vector<int> kLevels[] = {
      {127},
      {38, 127},
      {14, 45, 79, 127},
      {6, 18, 31, 44, 58, 75, 96, 127},
      {3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127},
      {1,  3,  6,  8,  10, 13, 15, 17, 20, 22, 24, 27, 30, 32, 35,  38,
       40, 43, 46, 49, 53, 56, 60, 64, 68, 73, 78, 84, 91, 99, 110, 127}};
  const int half = 1 << (bits - 1);
  return code >= half ? kLevels[bits - 1][code - half] : -kLevels[bits - 1][half - 1 - code];
}

// Where the bits of code r begin in an element of the plane of this width.
int PlaneBit(int width, int r) {
  if (width == 4) return 4 * r;
  const int even = r % 2 == 0 ? 0 : 1, pair = r / 2;
  if (width == 2) return 2 * even + (pair % 2 == 0 ? 2 * pair : 8 + 2 * (pair - 1));
  return 4 * even + pair;
}

int PlaneCode(const uint8_t* plane, int width, int element, int r) {
  int code = 0;
  for (int b = 0; b < width; ++b) {
    const int bit = PlaneBit(width, r) + b;
    code |= (plane[element * width + bit / 8] >> (bit % 8) & 1) << b;
  }
  return code;
}

// x [n] times m [n][n].
std::vector<double> Times(const std::vector<double>& x, const float* m) {
  const size_t n = x.size();
  std::vector<double> y(n, 0.0);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) y[j] += x[i] * m[i * n + j];
  }
  return y;
}

std::vector<double> TimesTransposed(const std::vector<double>& x, const float* m) {
  const size_t n = x.size();
  std::vector<double> y(n, 0.0);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) y[i] += x[j] * m[i * n + j];
  }
  return y;
}

std::vector<uint8_t> BitsOfCoefficients(const std::vector<uint8_t>& bits, int dim) {
  std::vector<uint8_t> each(dim);
  for (int i = 0; i < dim; ++i) each[i] = bits[i / 8];
  return each;
}

// TcCoefficientRef of a part with trellis codes.
double TrellisCoefficientRef(const std::vector<uint8_t>& each, const uint8_t* part, int block,
                             int slot, int i) {
  const int64_t bytes = TrellisBytesRef(each, 64);
  const int e = part[bytes * block + i / 64 * block + slot];
  const double number = TrellisNumberRef(each, 64, part + slot * bytes, i);
  return e == 0 ? 0.0 : std::exp2((e - 112) / 8.0) * number;
}

// A packed slot in the domain of y. state: of this side, [dim][dim] basis then [dim] deviations, or null.
std::vector<double> CodedRef(const TcSide& side, const std::vector<uint8_t>& bits,
                             const uint8_t* part, int block, int slot, bool key, const float* state,
                             bool trellis) {
  const std::vector<uint8_t> each = BitsOfCoefficients(bits, side.dim);
  std::vector<double> y(side.dim);
  for (int i = 0; i < side.dim; ++i) {
    const double deviation =
        state == nullptr ? std::sqrt(double{side.lambda[i]}) : state[side.dim * side.dim + i];
    y[i] = (trellis ? TrellisCoefficientRef(each, part, block, slot, i)
                    : TcCoefficientRef(bits, part, block, slot, i, key)) *
           deviation;
  }
  return state == nullptr ? y : TimesTransposed(y, state);
}

std::vector<double> RotatedMean(const TcPageRef& form, int64_t position) {
  const RopeTable& rope = *form.rope;
  std::vector<double> x(form.key.mean, form.key.mean + form.key.dim);
  for (int p = 0; p < rope.planes(); ++p) {
    const double angle = static_cast<double>(position) * rope.inv_freq[p];
    const double c = std::cos(angle) * rope.attention_scale,
                 s = std::sin(angle) * rope.attention_scale;
    const double a = x[rope.First(p)], b = x[rope.Second(p)];
    x[rope.First(p)] = a * c - b * s;
    x[rope.Second(p)] = a * s + b * c;
  }
  return x;
}

int64_t PartBytes(int dim, const std::vector<uint8_t>& bits, int block, bool trellis) {
  int64_t bytes = (dim + 63) / 64 * block;
  if (trellis) return bytes + TrellisBytesRef(BitsOfCoefficients(bits, dim), 64) * block;
  for (const int b : bits) bytes += int64_t{b} * block;
  return bytes;
}

}  // namespace

// The largest level, 127 of them, is this many standard deviations; the unit is a number of fp32.
double TcUnitRef(int bits) {
  static const float kLargest[] = {0.0f,        0.797884561f, 1.51041756f, 2.15194571f,
                                   2.73258957f, 3.26073249f,  3.74410127f};
  return kLargest[bits] / 127.0f;
}

int TcLevelRef(const std::vector<uint8_t>& bits, const uint8_t* part, int block, int slot, int i,
               bool key) {
  const int own = bits[i / 8];
  if (own == 0) return 0;
  const uint8_t* plane = part + (static_cast<int64_t>(bits.size()) * 8 + 63) / 64 * block;
  for (int c = 0; c < i / 8; ++c) plane += int64_t{bits[c]} * block;
  const int element = key ? slot : slot / 8 * 8 + i % 8, r = key ? i % 8 : slot % 8;
  int code = 0, low = 0;
  for (const int width : {4, 2, 1}) {
    if ((own & width) == 0) continue;
    code |= PlaneCode(plane, width, element, r) << low;
    low += width;
    plane += int64_t{width} * block;
  }
  return LevelRef(own, code);
}

double TcCoefficientRef(const std::vector<uint8_t>& bits, const uint8_t* part, int block, int slot,
                        int i, bool key) {
  const int e = part[i / 64 * block + slot];
  if (e == 0) return 0.0;
  return std::exp2((e - 112) / 8.0) * TcLevelRef(bits, part, block, slot, i, key) *
         TcUnitRef(bits[i / 8]);
}

std::vector<double> TcKeysRef(const TcPageRef& form, const PageView& page) {
  std::vector<double> keys;
  for (int t = 0; t < page.tokens; ++t) {
    std::vector<double> key(form.key.dim);
    if (t < page.sinks) {
      for (int i = 0; i < form.key.dim; ++i)
        key[i] = HalfToFloat(page.sink_k[t * page.sink_k_stride + i]);
    } else {
      const std::vector<double> y = CodedRef(form.key, form.key_bits, page.packed,
                                             form.block_tokens, t, true, form.state, form.trellis);
      const std::vector<double> mean = RotatedMean(form, page.begin + t);
      key = Times(y, form.key.inverse);
      for (int i = 0; i < form.key.dim; ++i) key[i] += mean[i];
    }
    keys.insert(keys.end(), key.begin(), key.end());
  }
  return keys;
}

std::vector<double> TcValuesRef(const TcPageRef& form, const PageView& page) {
  const int dim = form.value.dim, dk = form.key.dim;
  const uint8_t* const part =
      page.packed + PartBytes(dk, form.key_bits, form.block_tokens, form.trellis);
  const float* const state = form.state == nullptr ? nullptr : form.state + dk * dk + dk;
  std::vector<double> values;
  for (int t = 0; t < page.tokens; ++t) {
    std::vector<double> y(dim);
    if (t < page.sinks) {
      for (int i = 0; i < dim; ++i) y[i] = HalfToFloat(page.sink_v[t * page.sink_v_stride + i]);
    } else {
      y = CodedRef(form.value, form.value_bits, part, form.block_tokens, t, false, state,
                   form.trellis);
    }
    const std::vector<double> value = Times(y, form.value.inverse);
    for (int i = 0; i < dim; ++i) values.push_back(value[i] + form.value.mean[i]);
  }
  return values;
}

}  // namespace kvring
