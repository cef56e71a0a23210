// SPDX-License-Identifier: Apache-2.0
// Places and residuals of a page's fixed outlier slots, a register at a time. Included once per Highway target.
#if defined(KVRING_CPU_NUQ_SLOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_NUQ_SLOTS_INL_H_
#undef KVRING_CPU_NUQ_SLOTS_INL_H_
#else
#define KVRING_CPU_NUQ_SLOTS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/half.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// Up to kMost slots of a page, in order.
template <int kMost>
struct SlotList {
  uint16_t index[kMost], residual[kMost];
  int32_t place[kMost];
  float number[kMost];
};

// What a slot's place is made of: token * token_stride + channel * channel_stride.
struct SlotPlaces {
  int dim, end;  // indices from `end` on are not in use
  int token_stride, channel_stride;
};

// Slots [first, first + count) of `all`; count <= kMost. Returns how many come before the first that ends the list: an empty one
// (residual zero), or one that is not in use.
template <int kMost>
HWY_INLINE int LoadSlots(const uint8_t* at, int all, int first, int count, const SlotPlaces& places,
                         SlotList<kMost>& list) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<float, 16> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<uint16_t, decltype(df)> d16;
  const int lanes = static_cast<int>(hn::Lanes(df));
  // Whole registers: what lies behind the last slot is empty.
  const int whole = (count + 15) / 16 * 16;
  std::memset(list.index + whole - 16, 0, 32);
  std::memset(list.residual + whole - 16, 0, 32);
  std::memcpy(list.index, at + 2 * int64_t{first}, 2 * static_cast<size_t>(count));
  std::memcpy(list.residual, at + 2 * (int64_t{all} + first), 2 * static_cast<size_t>(count));
  // (index + 1/2) / dim is at least 1/(2 dim) from any whole number, farther than the product's roundings reach for
  // index < 2^16 and dim <= 512: cut off, it is the token.
  const auto inverse = hn::Set(df, 1.0f / static_cast<float>(places.dim));
  const auto end = hn::Set(di, places.end);
  for (int i = 0; i < whole; i += lanes) {
    const auto index = hn::BitCast(di, hn::PromoteTo(du, hn::LoadU(d16, list.index + i)));
    const auto half = hn::PromoteTo(du, hn::LoadU(d16, list.residual + i));
    const auto size = hn::And(half, hn::Set(du, 0x7fffu));
    // As HalfToFloat: residuals are finite.
    const auto normal = hn::Add(hn::ShiftLeft<13>(size), hn::Set(du, 112u << 23));
    const auto small = hn::Mul(hn::ConvertTo(df, hn::BitCast(di, size)), hn::Set(df, 0x1p-24f));
    const auto number =
        hn::IfThenElse(hn::Lt(size, hn::Set(du, 0x0400u)), hn::BitCast(du, small), normal);
    hn::StoreU(hn::BitCast(df, hn::Or(number, hn::ShiftLeft<16>(hn::Xor(half, size)))), df,
               list.number + i);
    const auto token =
        hn::ConvertTo(di, hn::Mul(hn::Add(hn::ConvertTo(df, index), hn::Set(df, 0.5f)), inverse));
    const auto channel = hn::Sub(index, hn::Mul(token, hn::Set(di, places.dim)));
    const auto row = hn::Mul(token, hn::Set(di, places.token_stride));
    hn::StoreU(hn::Add(row, hn::Mul(channel, hn::Set(di, places.channel_stride))), di,
               list.place + i);
    const auto empty = hn::RebindMask(di, hn::Eq(size, hn::Zero(du)));
    const intptr_t over = hn::FindFirstTrue(di, hn::Or(empty, hn::Not(hn::Lt(index, end))));
    if (over >= 0) return std::min(count, i + static_cast<int>(over));
  }
  return count;
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_NUQ_SLOTS_INL_H_
