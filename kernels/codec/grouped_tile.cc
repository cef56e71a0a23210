// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/grouped_tile.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/grouped_tile.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/code_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {

#if KVRING_CODE_TABLES
void TurnPlane(const CodeRows& rows, int64_t first, int64_t second, const float* cos,
               const float* sin, float base_cos, float base_sin, float* out) {
  const CodeFloat d;
  const CodeNumbers numbers(rows);
  const CodeRow a(numbers, rows, first), b(numbers, rows, second);
  const auto bc = hn::Set(d, base_cos), bs = hn::Set(d, base_sin);
  float* const to_a = out + first * rows.lanes;
  float* const to_b = out + second * rows.lanes;
  // Products and sums are kept apart, as in RotateTile.
  for (int64_t t = 0; t < rows.lanes; t += static_cast<int64_t>(hn::Lanes(d))) {
    const auto co = hn::LoadU(d, cos + t), so = hn::LoadU(d, sin + t);
    const auto c = hn::Sub(hn::Mul(bc, co), hn::Mul(bs, so));
    const auto s = hn::Add(hn::Mul(bs, co), hn::Mul(bc, so));
    const auto x = a.At(t), y = b.At(t);
    hn::StoreU(hn::Sub(hn::Mul(x, c), hn::Mul(y, s)), d, to_a + t);
    hn::StoreU(hn::Add(hn::Mul(x, s), hn::Mul(y, c)), d, to_b + t);
  }
}

void DecodeTurnedImpl(const CodeRows& rows, const PageAngles& angles, const float* base,
                      float* out) {
  const RopeTable& table = angles.table();
  for (int p = 0; p < table.planes(); ++p) {
    TurnPlane(rows, table.First(p), table.Second(p), angles.Cosines(p), angles.Sines(p),
              base[2 * p], base[2 * p + 1], out);
  }
  const CodeNumbers numbers(rows);
  for (int64_t r = 2 * table.planes(); r < rows.rows; ++r)
    DecodeRow(rows, numbers, r, out + r * rows.lanes);
}
#else
void DecodeTurnedImpl(const CodeRows&, const PageAngles&, const float*, float*) {}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(DecodeTurnedImpl);

void DecodeTurned(const CodeRows& rows, const PageAngles& angles, const float* base, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeTurnedImpl)(rows, angles, base, out);
}

}  // namespace kvring
#endif  // HWY_ONCE
