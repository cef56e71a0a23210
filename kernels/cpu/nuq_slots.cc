// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/nuq_slots.h"

#include <algorithm>
#include <cstring>

#include "kernels/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/nuq_slots.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using D16 = hn::Rebind<uint16_t, DF>;

// Places in the tile of `count` slots (rounded up to whole registers) from `index` on; returns how many of them come before the
// first that ends the list.
int FindPlaces(const NuqSlotsArgs& a, const uint16_t* index, const uint16_t* residual, int count,
               int32_t* place) {
  const DF df;
  const DU du;
  const DI di;
  const int lanes = static_cast<int>(hn::Lanes(df));
  // (index + 1/2) / dim is at least 1/(2 dim) from any whole number, farther than the product's roundings reach for
  // index < 2^16 and dim <= 512: cut off, it is the token.
  const auto inverse = hn::Set(df, 1.0f / static_cast<float>(a.dim)), half = hn::Set(df, 0.5f);
  const auto dim = hn::Set(di, a.dim), token_stride = hn::Set(di, static_cast<int>(a.token_stride)),
             channel_stride = hn::Set(di, static_cast<int>(a.channel_stride));
  const auto end = hn::Set(du, static_cast<uint32_t>(a.tokens * a.dim));
  for (int i = 0; i < count; i += lanes) {
    const auto at = hn::PromoteTo(du, hn::LoadU(D16(), index + i));
    const auto size =
        hn::And(hn::PromoteTo(du, hn::LoadU(D16(), residual + i)), hn::Set(du, 0x7fffu));
    const auto signed_at = hn::BitCast(di, at);
    const auto token =
        hn::ConvertTo(di, hn::Mul(hn::Add(hn::ConvertTo(df, signed_at), half), inverse));
    const auto channel = hn::Sub(signed_at, hn::Mul(token, dim));
    hn::StoreU(hn::Add(hn::Mul(token, token_stride), hn::Mul(channel, channel_stride)), di,
               place + i);
    const auto over = hn::Or(hn::Eq(size, hn::Zero(du)), hn::Not(hn::Lt(at, end)));
    const intptr_t first = hn::FindFirstTrue(du, over);
    if (first >= 0) return std::min(count, i + static_cast<int>(first));
  }
  return count;
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(FindPlaces);

void AddNuqSlots(const NuqSlotsArgs& a) {
  constexpr int kChunk = 128;  // most heads of a page have fewer
  uint16_t index[kChunk], residual[kChunk];
  int32_t place[kChunk];
  float number[kChunk];
  for (int first = 0; first < a.slots; first += kChunk) {
    const int count = std::min(kChunk, a.slots - first);
    const int whole = (count + 15) / 16 * 16;
    std::memset(residual + count, 0, sizeof(Half) * (whole - count));
    std::memset(index + count, 0, sizeof(uint16_t) * (whole - count));
    std::memcpy(index, a.at + 2 * int64_t{first}, 2 * count);
    std::memcpy(residual, a.at + 2 * (int64_t{a.slots} + first), 2 * count);
    HalfToFloat(residual, whole, number);
    const int used = HWY_DYNAMIC_DISPATCH(FindPlaces)(a, index, residual, count, place);
    for (int i = 0; i < used; ++i) a.tile[place[i]] += number[i];
    if (used < count) return;
  }
}

}  // namespace kvring
#endif  // HWY_ONCE
