// SPDX-License-Identifier: Apache-2.0
// Numbers of one row of codes in registers. Included once per Highway target; raw permutations, since Highway's own look-up
// wants indices without foreign bits, which the instructions do not.
#if defined(KVRING_CPU_CODE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_CODE_ROWS_INL_H_
#undef KVRING_CPU_CODE_ROWS_INL_H_
#else
#define KVRING_CPU_CODE_ROWS_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/code_rows.h"

#undef KVRING_CODE_TABLES
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define KVRING_CODE_TABLES 1
#else
#define KVRING_CODE_TABLES 0
#endif

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if KVRING_CODE_TABLES
using CodeFloat = hn::CappedTag<float, 16>;
using CodeWord = hn::RebindToUnsigned<CodeFloat>;
using CodeFloatV = hn::Vec<CodeFloat>;
using CodeWordV = hn::Vec<CodeWord>;

// The low three or four bits of each lane of x choose.
HWY_INLINE CodeFloatV Choose(CodeFloatV table, CodeWordV x) {
#if HWY_TARGET == HWY_AVX2
  return CodeFloatV{_mm256_permutevar8x32_ps(table.raw, x.raw)};
#else
  return CodeFloatV{_mm512_permutexvar_ps(x.raw, table.raw)};
#endif
}

struct CodeNumbers {
  CodeFloatV low, high;  // high: from the 8th on, where a register has eight
  bool two = false;
  explicit HWY_INLINE CodeNumbers(const CodeRows& rows) {
    low = hn::LoadU(CodeFloat(), rows.numbers);
    high = hn::LoadU(CodeFloat(), rows.numbers + 16 - hn::Lanes(CodeFloat()));
    two = hn::Lanes(CodeFloat()) == 8 && rows.bits == 4;
  }
};

HWY_INLINE CodeFloatV SpreadHalf(const uint8_t* at) {
  const hn::Rebind<uint16_t, CodeFloat> d16;
  const hn::Rebind<hwy::float16_t, CodeFloat> half;
  uint16_t x;
  std::memcpy(&x, at, 2);
  return hn::PromoteTo(CodeFloat(), hn::BitCast(half, hn::Set(d16, x)));
}

class CodeRow {
 public:
  HWY_INLINE CodeRow(const CodeNumbers& numbers, const CodeRows& rows, int64_t r) {
    const int64_t bit = r * rows.bits;
    low_ = reinterpret_cast<const uint32_t*>(rows.words) + bit / 32 * rows.lanes;
    lanes_ = rows.lanes;
    bits_ = rows.bits;
    shift_ = static_cast<int>(bit % 32);
    split_ = shift_ + rows.bits > 32;
    two_ = numbers.two;
    const CodeFloatV scale = SpreadHalf(rows.scale + 2 * r),
                     offset = SpreadHalf(rows.offset + 2 * r);
    table_ = hn::Add(offset, hn::Mul(scale, numbers.low));
    high_ = hn::Add(offset, hn::Mul(scale, numbers.high));
  }

  HWY_INLINE CodeFloatV At(int64_t lane) const {
    const CodeWord d;
    CodeWordV x = hn::ShiftRightSame(hn::LoadU(d, low_ + lane), shift_);
    if (split_) x = hn::Or(x, hn::ShiftLeftSame(hn::LoadU(d, low_ + lanes_ + lane), 32 - shift_));
    if (!two_) return Choose(table_, x);
    const hn::RebindToSigned<CodeFloat> di;
    const auto second = hn::BitCast(CodeFloat(), hn::ShiftLeft<28>(hn::BitCast(di, x)));
    return hn::IfNegativeThenElse(second, Choose(high_, x), Choose(table_, x));
  }

  // Asks for what is `ahead` bytes from the words, once for each row of them.
  HWY_INLINE void Fetch(int64_t lane, int64_t ahead) const {
    if (shift_ < bits_)
      __builtin_prefetch(reinterpret_cast<const uint8_t*>(low_ + lane) + ahead, 0, 2);
  }

 private:
  const uint32_t* low_;
  int64_t lanes_;
  int shift_, bits_;
  bool split_, two_;
  CodeFloatV table_, high_;
};

HWY_INLINE void DecodeRow(const CodeRows& rows, const CodeNumbers& numbers, int64_t r, float* out) {
  const CodeFloat d;
  const CodeRow row(numbers, rows, r);
  const int64_t width = static_cast<int64_t>(hn::Lanes(d));
  int64_t l = 0;
  for (; l + width <= rows.lanes; l += width) hn::StoreU(row.At(l), d, out + l);
  // The last register overlaps: writes are the same.
  if (l < rows.lanes) hn::StoreU(row.At(rows.lanes - width), d, out + rows.lanes - width);
}
#endif

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_CODE_ROWS_INL_H_
