// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/nuq_slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/nuq_slots.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/nuq_slots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

void AddSlotsTarget(const NuqSlotsArgs& a) {
  constexpr int kChunk = 128;  // most heads of a page have fewer
  SlotList<kChunk> list;
  const SlotPlaces places{a.dim, a.tokens * a.dim, static_cast<int>(a.token_stride),
                          static_cast<int>(a.channel_stride)};
  for (int first = 0; first < a.slots; first += kChunk) {
    const int count = std::min(kChunk, a.slots - first);
    const int used = LoadSlots(a.at, a.slots, first, count, places, list);
    for (int i = 0; i < used; ++i) a.tile[list.place[i]] += list.number[i];
    if (used < count) return;
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(AddSlotsTarget);

void AddNuqSlots(const NuqSlotsArgs& args) { HWY_DYNAMIC_DISPATCH(AddSlotsTarget)(args); }

}  // namespace kvring
#endif  // HWY_ONCE
