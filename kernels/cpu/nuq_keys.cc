// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/nuq_keys.h"

#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/nuq_keys.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/nuq_slots-inl.h"
#include "kernels/cpu/nuq_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// One channel's codes of a page: their words and where they begin in them.
template <int kBits>
struct ChannelCodes {
  const uint32_t* words;
  int64_t block;
  int offset;

  HWY_INLINE ChannelCodes(const NuqKeysArgs& a, int channel)
      : words(reinterpret_cast<const uint32_t*>(a.words) + kBits * channel / 32 * a.block),
        block(a.block),
        offset(kBits * channel % 32) {}

  // The code in the low bits, others above it.
  HWY_INLINE VU At(int64_t slot) const {
    const VU low = hn::ShiftRightSame(hn::LoadU(DU(), words + slot), offset);
    if constexpr (32 % kBits != 0) {
      if (offset + kBits > 32)
        return hn::Or(low, hn::ShiftLeftSame(hn::LoadU(DU(), words + block + slot), 32 - offset));
    }
    return low;
  }
};

// Slots [first, first + kNuqKeyStrip) of all channels. extra: outliers [dim][kNuqKeyStrip], -0 where there are none, so that adding
// it changes no bit; with kExtra.
template <int kBits, bool kExtra>
void KeyStrip(const NuqKeysArgs& a, int64_t first, const float* extra) {
  constexpr int kVectors = kNuqKeyStrip / kLanes;
  const DF d;
  const KeptTables<kBits> tables{a.tables};
  const float* cos = a.cos + first;
  const float* sin = a.sin + first;
  const auto number = [&](const RowTable<kBits>& table, const ChannelCodes<kBits>& codes,
                          int channel, int64_t t) HWY_ATTR {
    const VF x = table.Number(codes.At(first + t));
    return kExtra ? hn::Add(x, hn::LoadU(d, extra + channel * kNuqKeyStrip + t)) : x;
  };
  for (int p = 0; p < a.rope->planes(); ++p, cos += a.block, sin += a.block) {
    const int i = a.rope->First(p), j = a.rope->Second(p);
    const RowTable<kBits> first_table = tables.Row(i), second_table = tables.Row(j);
    const ChannelCodes<kBits> first_codes(a, i), second_codes(a, j);
    const VF bc = hn::Set(d, a.base[2 * p]), bs = hn::Set(d, a.base[2 * p + 1]);
    float* const to_first = a.kt + i * int64_t{a.block} + first;
    float* const to_second = a.kt + j * int64_t{a.block} + first;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int64_t t = v * kLanes;
      const VF co = hn::LoadU(d, cos + t), so = hn::LoadU(d, sin + t);
      const VF c = hn::Sub(hn::Mul(bc, co), hn::Mul(bs, so));
      const VF s = hn::Add(hn::Mul(bs, co), hn::Mul(bc, so));
      const VF x = number(first_table, first_codes, i, t);
      const VF y = number(second_table, second_codes, j, t);
      hn::StoreU(hn::Sub(hn::Mul(x, c), hn::Mul(y, s)), d, to_first + t);
      hn::StoreU(hn::Add(hn::Mul(x, s), hn::Mul(y, c)), d, to_second + t);
    }
  }
  for (int i = 2 * a.rope->planes(); i < a.dim; ++i) {
    const RowTable<kBits> table = tables.Row(i);
    const ChannelCodes<kBits> codes(a, i);
    for (int64_t t = 0; t < kNuqKeyStrip; t += kLanes)
      hn::StoreU(number(table, codes, i, t), d, a.kt + i * int64_t{a.block} + first + t);
  }
}

// extra: [dim][kNuqKeyStrip], all -0 before and after.
template <int kBits>
void DecodeKeys(const NuqKeysArgs& a, float* extra) {
  if (a.slot_count == 0) {
    for (int64_t first = 0; first < a.block; first += kNuqKeyStrip)
      KeyStrip<kBits, false>(a, first, nullptr);
    return;
  }
  SlotList<kNuqKeySlots> list;
  const SlotPlaces places{a.dim, a.block * a.dim, kNuqKeyStrip - 1, 1, kNuqKeyStrip};
  const int used = LoadSlots(a.slots, a.slot_count, 0, a.slot_count, places, list);
  int next = 0;
  for (int64_t first = 0; first < a.block; first += kNuqKeyStrip) {
    const int64_t end = (first + kNuqKeyStrip) * a.dim;
    const int begin = next;
    for (; next < used && list.index[next] < end; ++next)
      extra[list.place[next]] = list.number[next];
    KeyStrip<kBits, true>(a, first, extra);
    for (int i = begin; i < next; ++i) extra[list.place[i]] = -0.0f;
  }
}

void DecodeKeysTarget(const NuqKeysArgs& args, float* extra) {
  if (args.bits == 2) return DecodeKeys<2>(args, extra);
  if (args.bits == 3) return DecodeKeys<3>(args, extra);
  DecodeKeys<4>(args, extra);
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(DecodeKeysTarget);

void DecodeNuqKeys(const NuqKeysArgs& args) {
  thread_local std::vector<float> extra;
  const size_t need = static_cast<size_t>(args.dim) * kNuqKeyStrip + 16;
  if (args.slot_count > 0 && extra.size() < need) extra.assign(need, -0.0f);
  float* aligned = extra.data();
  while (reinterpret_cast<uintptr_t>(aligned) % 64 != 0) ++aligned;
  HWY_DYNAMIC_DISPATCH(DecodeKeysTarget)(args, aligned);
}

}  // namespace kvring
#endif  // HWY_ONCE
