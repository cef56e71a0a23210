// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/code_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/code_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/code_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

#if KVRING_CODE_TABLES
bool HaveTables() { return true; }

void DecodeCodesImpl(const CodeRows& rows, float* out) {
  const CodeNumbers numbers(rows);
  for (int64_t r = 0; r < rows.rows; ++r) DecodeRow(rows, numbers, r, out + r * rows.lanes);
}
void TurnPlane(const CodeRows& rows, int64_t first, int64_t second, const float* cos,
               const float* sin, float base_cos, float base_sin, float* out) {
  const CodeFloat d;
  const CodeNumbers numbers(rows);
  const CodeRow a(numbers, rows, first), b(numbers, rows, second);
  const auto bc = hn::Set(d, base_cos), bs = hn::Set(d, base_sin);
  float* const to_a = out + first * rows.lanes;
  float* const to_b = out + second * rows.lanes;
  // Products and sums are kept apart, as when a tile is turned.
  for (int64_t t = 0; t < rows.lanes; t += static_cast<int64_t>(hn::Lanes(d))) {
    const auto co = hn::LoadU(d, cos + t), so = hn::LoadU(d, sin + t);
    const auto c = hn::Sub(hn::Mul(bc, co), hn::Mul(bs, so));
    const auto s = hn::Add(hn::Mul(bs, co), hn::Mul(bc, so));
    const auto x = a.At(t), y = b.At(t);
    hn::StoreU(hn::Sub(hn::Mul(x, c), hn::Mul(y, s)), d, to_a + t);
    hn::StoreU(hn::Add(hn::Mul(x, s), hn::Mul(y, c)), d, to_b + t);
  }
}

void DecodeTurnedImpl(const CodeRows& rows, const RopeTable& table, const float* cos,
                      const float* sin, const float* base, float* out) {
  for (int p = 0; p < table.planes(); ++p) {
    TurnPlane(rows, table.First(p), table.Second(p), cos + p * rows.lanes, sin + p * rows.lanes,
              base[2 * p], base[2 * p + 1], out);
  }
  const CodeNumbers numbers(rows);
  for (int64_t r = 2 * table.planes(); r < rows.rows; ++r)
    DecodeRow(rows, numbers, r, out + r * rows.lanes);
}
#else
bool HaveTables() { return false; }
void DecodeCodesImpl(const CodeRows&, float*) {}
void DecodeTurnedImpl(const CodeRows&, const RopeTable&, const float*, const float*, const float*,
                      float*) {}
#endif

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(HaveTables);
HWY_EXPORT(DecodeCodesImpl);
HWY_EXPORT(DecodeTurnedImpl);

bool HaveCodeTables() { return HWY_DYNAMIC_DISPATCH(HaveTables)(); }

void DecodeCodes(const CodeRows& rows, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeCodesImpl)(rows, out);
}

void DecodeTurned(const CodeRows& rows, const RopeTable& table, const float* cos, const float* sin,
                  const float* base, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeTurnedImpl)(rows, table, cos, sin, base, out);
}

}  // namespace kvring
#endif
