// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/small_matrix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/small_matrix.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

// y[0..4 vectors) += x * m, four vectors of outputs kept in registers.
void RowBlock(const float* x, const float* m, int in, int64_t stride, float* y) {
  const DF d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  VF a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
  for (int i = 0; i < in; ++i, m += stride) {
    const VF s = hn::Set(d, x[i]);
    a = hn::Add(a, hn::Mul(s, hn::LoadU(d, m)));
    b = hn::Add(b, hn::Mul(s, hn::LoadU(d, m + n)));
    c = hn::Add(c, hn::Mul(s, hn::LoadU(d, m + 2 * n)));
    e = hn::Add(e, hn::Mul(s, hn::LoadU(d, m + 3 * n)));
  }
  hn::StoreU(a, d, y);
  hn::StoreU(b, d, y + n);
  hn::StoreU(c, d, y + 2 * n);
  hn::StoreU(e, d, y + 3 * n);
}

void OneRow(const float* x, const float* m, int in, int out, float* y) {
  const DF d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + 4 * n <= out; j += 4 * n) RowBlock(x, m + j, in, out, y + j);
  for (; j + n <= out; j += n) {
    VF sum = hn::Zero(d);
    for (int i = 0; i < in; ++i)
      sum = hn::Add(sum, hn::Mul(hn::Set(d, x[i]), hn::LoadU(d, m + int64_t{i} * out + j)));
    hn::StoreU(sum, d, y + j);
  }
  for (; j < out; ++j) {
    float sum = 0.0f;
    for (int i = 0; i < in; ++i) sum += x[i] * m[int64_t{i} * out + j];
    y[j] = sum;
  }
}

void SmallRows(const float* x, int64_t rows, const float* m, int in, int out, float* y) {
  for (int64_t r = 0; r < rows; ++r) OneRow(x + r * in, m, in, out, y + r * out);
}

void SmallColumns(const float* x, int64_t lanes, const float* m, int in, int out, float* y) {
  const DF d;
  for (int64_t l = 0; l < lanes; l += static_cast<int64_t>(hn::Lanes(d))) {
    int j = 0;
    for (; j + 4 <= out; j += 4) {
      VF a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
      for (int i = 0; i < in; ++i) {
        const VF v = hn::LoadU(d, x + i * lanes + l);
        const float* const row = m + int64_t{i} * out + j;
        a = hn::Add(a, hn::Mul(v, hn::Set(d, row[0])));
        b = hn::Add(b, hn::Mul(v, hn::Set(d, row[1])));
        c = hn::Add(c, hn::Mul(v, hn::Set(d, row[2])));
        e = hn::Add(e, hn::Mul(v, hn::Set(d, row[3])));
      }
      hn::StoreU(a, d, y + j * lanes + l);
      hn::StoreU(b, d, y + (j + 1) * lanes + l);
      hn::StoreU(c, d, y + (j + 2) * lanes + l);
      hn::StoreU(e, d, y + (j + 3) * lanes + l);
    }
    for (; j < out; ++j) {
      VF sum = hn::Zero(d);
      for (int i = 0; i < in; ++i) {
        sum = hn::Add(
            sum, hn::Mul(hn::LoadU(d, x + i * lanes + l), hn::Set(d, m[int64_t{i} * out + j])));
      }
      hn::StoreU(sum, d, y + j * lanes + l);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(SmallRows);
HWY_EXPORT(SmallColumns);

}  // namespace

void RowsTimesMatrix(const float* x, int64_t rows, const float* m, int in, int out, float* y) {
  HWY_DYNAMIC_DISPATCH(SmallRows)(x, rows, m, in, out, y);
}

void ColumnsTimesMatrix(const float* x, int64_t lanes, const float* m, int in, int out, float* y) {
  HWY_DYNAMIC_DISPATCH(SmallColumns)(x, lanes, m, in, out, y);
}

}  // namespace kvring
#endif  // HWY_ONCE
