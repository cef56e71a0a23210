// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/nuq_outliers.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/nuq_slots.h"

namespace kvring {
namespace {

uint16_t Load16(const uint8_t* at) {
  uint16_t x;
  std::memcpy(&x, at, 2);
  return x;
}

void Store16(uint16_t x, uint8_t* at) { std::memcpy(at, &x, 2); }

void StoreSlot(int token, const OutlierEntry& entry, OutlierSlots& slots) {
  Store16(static_cast<uint16_t>(token * slots.dim + entry.channel), slots.at + 2 * slots.used);
  Store16(entry.residual, slots.at + 2 * (slots.slots + slots.used));
  ++slots.used;
}

bool IsZero(Half h) { return (h & 0x7fffu) == 0; }

// The `count` largest of the entries, ascending by channel.
std::vector<OutlierEntry> LargestOf(std::span<const OutlierEntry> entries, int count) {
  std::vector<OutlierEntry> best(entries.begin(), entries.end());
  // Stable, so that ties stay in the order of channels; magnitudes of halves order as their bits.
  std::stable_sort(best.begin(), best.end(), [](const OutlierEntry& a, const OutlierEntry& b) {
    return (a.residual & 0x7fffu) > (b.residual & 0x7fffu);
  });
  best.resize(count);
  std::sort(best.begin(), best.end(),
            [](const OutlierEntry& a, const OutlierEntry& b) { return a.channel < b.channel; });
  return best;
}

const uint8_t* EntryAt(const uint8_t* lists, int block, int64_t i) {
  return lists + 4 * (block + i);
}

uint16_t CountAt(const uint8_t* lists, int block, bool values, int token) {
  return Load16(lists + 2 * ((values ? block : 0) + token));
}

// First of [begin, end) whose channel is not below `channel`.
int64_t LowerBound(const OutlierListReader& r, int64_t begin, int64_t end, int channel) {
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (Load16(EntryAt(r.at, r.block, middle)) < channel) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

}  // namespace

void TruncateSlots(int first, OutlierSlots& slots) {
  slots.used = 0;
  while (first > 0 && slots.used < slots.slots &&
         !IsZero(Load16(slots.at + 2 * (slots.slots + slots.used))) &&
         Load16(slots.at + 2 * slots.used) < first * slots.dim) {
    ++slots.used;
  }
  const int64_t free = slots.slots - slots.used;
  std::memset(slots.at + 2 * slots.used, 0, 2 * free);
  std::memset(slots.at + 2 * (slots.slots + slots.used), 0, 2 * free);
}

OutlierLosses AddToSlots(int token, std::span<const OutlierEntry> entries, OutlierSlots& slots) {
  OutlierLosses losses;
  const auto needed = std::count_if(entries.begin(), entries.end(),
                                    [](const OutlierEntry& e) { return !IsZero(e.residual); });
  std::vector<OutlierEntry> chosen;
  const int free = slots.slots - slots.used;
  if (needed > free) {
    chosen = LargestOf(entries, free);
    entries = chosen;
    losses.overflow = losses.saturated = needed - free;
  }
  for (const OutlierEntry& entry : entries) {
    if (IsZero(entry.residual)) continue;
    StoreSlot(token, entry, slots);
    losses.saturated += entry.clamped;
  }
  return losses;
}

void AddSlots(const uint8_t* at, int slots, int dim, int tokens, TileOrder order, float* tile) {
  AddNuqSlots({at, slots, dim, tokens, order.token_stride, order.channel_stride, tile});
}

int64_t CountListed(const uint8_t* at, int block, int begin, int end) {
  int64_t sum = 0;
  for (int t = begin; t < end; ++t)
    sum += CountAt(at, block, false, t) + CountAt(at, block, true, t);
  return sum;
}

int64_t AppendList(int token, bool values, std::span<const OutlierEntry> entries, int64_t offset,
                   OutlierLists& lists) {
  Store16(static_cast<uint16_t>(entries.size()),
          lists.at + 2 * ((values ? lists.block : 0) + token));
  uint8_t* to = lists.at + 4 * (lists.block + offset);
  for (const OutlierEntry& entry : entries) {
    Store16(static_cast<uint16_t>(entry.channel), to);
    Store16(entry.residual, to + 2);
    to += 4;
  }
  return offset + static_cast<int64_t>(entries.size());
}

void ClearLists(int begin, int end, OutlierLists& lists) {
  if (begin >= end) return;
  std::memset(lists.at + 2 * begin, 0, 2 * (end - begin));
  std::memset(lists.at + 2 * (lists.block + begin), 0, 2 * (end - begin));
}

std::vector<int32_t> SliceStarts(std::span<const int32_t> counts, int slice) {
  std::vector<int32_t> starts;
  int64_t next = 0, end = 0;  // first entry of the next slice; entries of tokens so far
  for (size_t t = 0; t < counts.size(); ++t) {
    end += counts[t];
    for (; next < end; next += slice) starts.push_back(static_cast<int32_t>(t));
  }
  return starts;
}

void AddLists(const OutlierListReader& r, TileOrder order, float* tile) {
  int64_t at = 0;
  for (int t = r.begin; t < r.tokens; ++t) {
    const int64_t keys = CountAt(r.at, r.block, false, t),
                  all = CountListed(r.at, r.block, t, t + 1);
    const int64_t begin = r.values ? at + keys : at, end = r.values ? at + all : at + keys;
    float* const row = tile + t * order.token_stride;
    for (int64_t i = LowerBound(r, begin, end, r.head * r.dim); i < end; ++i) {
      const uint8_t* const entry = EntryAt(r.at, r.block, i);
      const int channel = Load16(entry) - r.head * r.dim;
      if (channel >= r.dim) break;
      row[channel * order.channel_stride] += HalfToFloat(Load16(entry + 2));
    }
    at += all;
  }
}

}  // namespace kvring
