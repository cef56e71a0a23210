// SPDX-License-Identifier: Apache-2.0
// Keys or values of nuq: from the rows of a token to codes, scales and outliers, and from a page's part back to a tile. The
// two sides differ in the axis that a scale belongs to: a channel (keys; known beforehand, in the tables) or a token (values;
// found when the token arrives).
//
// Part of a page, B slots, b bits:
//   by channel: codes u32 [WordRows(dim, b)][B]  (rows are channels)
//   by token:   codes u32 [WordRows(B, b)][dim]  (rows are slots), then scale Half [B], offset Half [B]; with one scale for
//               all heads of a token (:token) in the page of KV head 0 alone
//   fixed slots: index u16 [slots], residual Half [slots] (nuq_outliers.h)
// Immutable, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec/nuq_form.h"
#include "kernels/codec/nuq_outliers.h"
#include "kernels/cpu/nuq_tile.h"

namespace kvring {

// One token on its way into pages. Reused from token to token.
struct TokenCode {
  std::vector<uint8_t> codes;         // [D]
  std::vector<float> z, s;            // [D] by token: of every element
  std::vector<Normalizer> params;     // [heads], or [1] with one scale for all heads
  std::vector<OutlierEntry> entries;  // ascending channels within D
  std::vector<int32_t> picked;        // channels of the entries
  std::vector<int32_t> scratch;
  int64_t saturated = 0;  // elements beyond range that never became entries
};

class SideCodec {
 public:
  SideCodec() = default;
  SideCodec(const NuqForm& form, NuqSideTables tables, int block, bool capped);

  int64_t PartBytes(int layer, int head) const;
  int slots(int layer, int head) const { return tables_.slots[layer * tables_.heads + head]; }
  int64_t SlotsOffset(int head) const { return word_bytes_ + ParamBytes(head); }
  int width() const { return tables_.width(); }
  int dim() const { return tables_.dim; }
  double outliers(int layer) const { return tables_.outliers[layer]; }

  // row: [D], finite.
  void EncodeToken(int layer, const float* row, TokenCode& token) const;
  // Entries that EncodeToken would make.
  int64_t CountEntries(int layer, const float* row, TokenCode& token) const;
  // Codes and scales into the parts; parts: [heads].
  void StoreToken(const TokenCode& token, int slot, uint8_t* const* parts) const;

  // The part of one head without its outliers, as it lies in the page: rows are channels with by_channel, else slots.
  // shared: the same part of KV head 0's page. Slots from `tokens` on are arbitrary (by channel) or untouched (by token).
  void DecodeCodes(int layer, int head, const uint8_t* part, const uint8_t* shared, int tokens,
                   float* tile) const;
  // by_channel: tables of a head's channels, [dim][kNuqTable].
  const float* Numbers(int layer, int head) const {
    return &numbers_[(int64_t{layer} * width() + int64_t{head} * dim()) * kNuqTable];
  }
  bool by_channel() const { return tables_.by_channel; }
  TileOrder Order() const;

 private:
  int64_t ParamBytes(int head) const;
  void FillNumbers();
  void PickByThreshold(int layer, const float* row, TokenCode& token) const;
  void Cap(int layer, const float* row, TokenCode& token) const;
  void FindParams(const float* row, TokenCode& token) const;
  void FillParams(int begin, int count, Normalizer params, TokenCode& token) const;
  void MakeEntries(int layer, const float* row, const float* z, const float* s,
                   TokenCode& token) const;

  NuqSideTables tables_;
  // [layers][D][kNuqTable] by channel: what codes decode to; by token [layers][kNuqTable]: the datatype (kernels/cpu/nuq_tile.h).
  std::vector<float> numbers_;
  int bits_ = 0, block_ = 0;
  bool one_scale_ = false;  // over all heads of a token
  bool keeps_outliers_ = false;
  bool capped_ = false;
  int per_side_ = 0;  // m(D, f)
  int64_t word_bytes_ = 0;
};

}  // namespace kvring
