// SPDX-License-Identifier: Apache-2.0
// The two containers of outliers (kvquant 4.1, 5.2): fixed slots in the page of their own head, and lists of any length in
// the page of KV head 0. Plain functions of bytes; the caller owns them. Thread-safe on different pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/half.h"

namespace kvring {

// One element that is kept apart: what is added to the number that its code decodes to.
struct OutlierEntry {
  int32_t channel = 0;
  Half residual = 0;
  bool clamped = false;  // the residual is beyond fp16
};

// Elements that are not stored in range, and those of them that found no slot.
struct OutlierLosses {
  int64_t saturated = 0, overflow = 0;
};

// Fixed slots of a page side: u16 index (slot of the token * dim + channel) [slots], then Half residual [slots]. Tokens in the
// order of their arrival, a token's entries by index. Zero residuals are not stored, so the first zero ends the list.
struct OutlierSlots {
  uint8_t* at = nullptr;
  int slots = 0;
  int dim = 0;
  int used = 0;
};

inline int64_t OutlierSlotBytes(int64_t slots) { return 4 * slots; }

// Forgets entries of tokens from `first` on, the rest becomes zeros.
void TruncateSlots(int first, OutlierSlots& slots);

// Adds the entries of one token (ascending channels within the head). When they are more than the free slots, the largest
// residuals win, ties to the lower channel.
OutlierLosses AddToSlots(int token, std::span<const OutlierEntry> entries, OutlierSlots& slots);

// tile[token * token_stride + channel * channel_stride] += residual, tokens below `tokens`.
struct TileOrder {
  int64_t token_stride = 0, channel_stride = 0;
};
void AddSlots(const uint8_t* at, int slots, int dim, int tokens, TileOrder order, float* tile);

// Lists of a block: u16 counts of K [block], of V [block]; then entries (u16 channel over all heads, Half residual), token
// by token, K then V.
struct OutlierLists {
  uint8_t* at = nullptr;
  int block = 0;
};

inline int64_t OutlierListBytes(int block, int64_t entries) { return 4 * (block + entries); }

// Entries of both sides of tokens [begin, end).
int64_t CountListed(const uint8_t* at, int block, int begin, int end);

// Appends one token's list at entry `offset`; returns the offset behind it.
int64_t AppendList(int token, bool values, std::span<const OutlierEntry> entries, int64_t offset,
                   OutlierLists& lists);
// Counts of tokens [begin, end) become zero.
void ClearLists(int begin, int end, OutlierLists& lists);

// Tokens in which slices of `slice` entries begin, for counts[t] entries of token t: how a balanced sparse product gives every
// thread the same number of entries (kvquant 8.1). A slice begins in the token of its first entry; none begins without one.
std::vector<int32_t> SliceStarts(std::span<const int32_t> counts, int slice);

// What of the lists belongs to one head's page and side.
struct OutlierListReader {
  const uint8_t* at = nullptr;
  int block = 0;
  bool values = false;
  int begin = 0, tokens = 0;  // tokens [begin, tokens) have lists
  int head = 0, dim = 0;
};
void AddLists(const OutlierListReader& reader, TileOrder order, float* tile);

}  // namespace kvring
