// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/nuq_side.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/codec/bit_words.h"
#include "kernels/codec/nuq_nearest.h"

namespace kvring {
namespace {

void StoreHalf(float x, uint8_t* at) {
  const Half h = FloatToHalf(x);
  std::memcpy(at, &h, 2);
}

}  // namespace

SideCodec::SideCodec(const NuqForm& form, NuqSideTables tables, int block, bool capped)
    : tables_(std::move(tables)),
      bits_(form.bits),
      block_(block),
      one_scale_(form.token && !tables_.by_channel),
      keeps_outliers_(form.fraction > 0),
      capped_(capped),
      per_side_(OutliersPerSide(tables_.width(), form.fraction)),
      word_bytes_(tables_.by_channel ? WordBytes(tables_.dim, block, form.bits)
                                     : WordBytes(block, tables_.dim, form.bits)) {
  FillNumbers();
}

// By channel: what each code of a channel decodes to, by the operations of the encoder (MakeEntries).
void SideCodec::FillNumbers() {
  const int64_t rows = static_cast<int64_t>(tables_.decode.size()) / tables_.codes;  // layers
  const int64_t channels = tables_.by_channel ? width() : 1;
  numbers_.resize(rows * channels * kNuqTable);
  std::vector<float> numbers(tables_.codes);
  for (int64_t i = 0; i < rows * channels; ++i) {
    const float* const decode = &tables_.decode[i / channels * tables_.codes];
    for (int j = 0; j < tables_.codes; ++j) {
      const float scaled = tables_.by_channel ? tables_.s[i] * decode[j] : 0.0f;
      numbers[j] = tables_.by_channel ? tables_.z[i] + scaled : decode[j];
    }
    RepeatNuqTable(numbers.data(), bits_, &numbers_[i * kNuqTable]);
  }
}

int64_t SideCodec::ParamBytes(int head) const {
  return tables_.by_channel || (one_scale_ && head != 0) ? 0 : 4 * int64_t{block_};
}

int64_t SideCodec::PartBytes(int layer, int head) const {
  return word_bytes_ + ParamBytes(head) + OutlierSlotBytes(slots(layer, head));
}

TileOrder SideCodec::Order() const {
  return tables_.by_channel ? TileOrder{1, block_} : TileOrder{tables_.dim, 1};
}

// Channels beyond their thresholds (4.1), without branches: most are not.
void SideCodec::PickByThreshold(int layer, const float* row, TokenCode& token) const {
  const int n = width();
  const float* const lo = &tables_.lo[int64_t{layer} * n];
  const float* const hi = &tables_.hi[int64_t{layer} * n];
  token.scratch.resize(n);
  int32_t* const out = token.scratch.data();
  int count = 0;
  for (int c = 0; c < n; ++c) {
    out[count] = c;
    count += static_cast<int>(row[c] < lo[c]) | static_cast<int>(row[c] > hi[c]);
  }
  token.picked.assign(out, out + count);
  token.saturated = 0;
  if (!keeps_outliers_) {
    token.saturated = count;
    token.picked.clear();
  } else if (capped_ && count > per_side_) {
    Cap(layer, row, token);
  }
}

// At most m a side, the farthest in units of their channel's half width, ties to the lower channel (4.1).
void SideCodec::Cap(int layer, const float* row, TokenCode& token) const {
  const int64_t base = int64_t{layer} * width();
  std::vector<std::pair<float, int32_t>> sides[2];
  for (const int32_t c : token.picked) {
    const float s = tables_.s[base + c], off = row[c] - tables_.z[base + c];
    const float t = s > 0.0f ? std::abs(off / s) : std::numeric_limits<float>::infinity();
    sides[row[c] > tables_.hi[base + c]].emplace_back(-t, c);
  }
  const size_t before = token.picked.size();
  token.picked.clear();
  for (auto& side : sides) {
    std::sort(side.begin(), side.end());
    const size_t kept = std::min<size_t>(side.size(), per_side_);
    for (size_t i = 0; i < kept; ++i) token.picked.push_back(side[i].second);
  }
  std::sort(token.picked.begin(), token.picked.end());
  token.saturated = static_cast<int64_t>(before - token.picked.size());
}

void SideCodec::FillParams(int begin, int count, Normalizer params, TokenCode& token) const {
  std::fill_n(token.z.begin() + begin, count, params.z);
  std::fill_n(token.s.begin() + begin, count, params.s);
  token.params.push_back(params);
}

// Extremes over all heads, then the range of the rest: of each head, or of all (4.2).
void SideCodec::FindParams(const float* row, TokenCode& token) const {
  const int n = width(), dim = tables_.dim;
  token.picked.resize(2 * per_side_);
  SelectExtremes({row, static_cast<size_t>(n)}, per_side_, token.picked.data());
  token.saturated = 0;
  token.params.clear();
  token.z.resize(n);
  token.s.resize(n);
  if (one_scale_) {
    const ValueRange range = RangeWithout({row, static_cast<size_t>(n)}, token.picked);
    FillParams(0, n, RoundedNormalizer(range), token);
    return;
  }
  size_t at = 0;
  for (int begin = 0; begin < n; begin += dim) {
    token.scratch.clear();
    for (; at < token.picked.size() && token.picked[at] < begin + dim; ++at)
      token.scratch.push_back(token.picked[at] - begin);
    const ValueRange range = RangeWithout({row + begin, static_cast<size_t>(dim)}, token.scratch);
    FillParams(begin, dim, RoundedNormalizer(range), token);
  }
}

// Residuals against the number that the stored code decodes to, by the operations of UnpackRows (4.3, 7.3).
void SideCodec::MakeEntries(int layer, const float* row, const float* z, const float* s,
                            TokenCode& token) const {
  const float* const decode = &tables_.decode[int64_t{layer} * tables_.codes];
  token.entries.clear();
  for (const int32_t c : token.picked) {
    const float scaled = s[c] * decode[token.codes[c]];
    const float residual = row[c] - (z[c] + scaled);
    token.entries.push_back({c, FloatToHalfSaturated(residual), std::abs(residual) > 65504.0f});
  }
}

void SideCodec::EncodeToken(int layer, const float* row, TokenCode& token) const {
  const int n = width();
  token.codes.resize(n);
  const float *z = nullptr, *s = nullptr;
  if (tables_.by_channel) {
    PickByThreshold(layer, row, token);
    z = &tables_.z[int64_t{layer} * n];
    s = &tables_.s[int64_t{layer} * n];
  } else {
    FindParams(row, token);
    z = token.z.data();
    s = token.s.data();
  }
  NearestCodes(row, z, s, n, &tables_.centroids[int64_t{layer} * tables_.codes], tables_.codes,
               token.codes.data());
  MakeEntries(layer, row, z, s, token);
}

int64_t SideCodec::CountEntries(int layer, const float* row, TokenCode& token) const {
  if (!tables_.by_channel) return 2 * per_side_;
  PickByThreshold(layer, row, token);
  return static_cast<int64_t>(token.picked.size());
}

void SideCodec::StoreToken(const TokenCode& token, int slot, uint8_t* const* parts) const {
  for (int head = 0; head < tables_.heads; ++head) {
    const uint8_t* const codes = &token.codes[int64_t{head} * tables_.dim];
    if (tables_.by_channel) {
      PackColumn(codes, tables_.dim, bits_, slot, block_, parts[head]);
      continue;
    }
    PackRow(codes, tables_.dim, bits_, slot, parts[head]);
    if (ParamBytes(head) == 0) continue;
    const Normalizer& params = token.params[one_scale_ ? 0 : head];
    uint8_t* const to = parts[head] + word_bytes_;
    StoreHalf(params.s, to + 2 * slot);
    StoreHalf(params.z, to + 2 * (block_ + slot));
  }
}

void SideCodec::DecodeCodes(int layer, int head, const uint8_t* part, const uint8_t* shared,
                            int tokens, float* tile) const {
  const int64_t dim = tables_.dim;
  if (tables_.by_channel) {
    DecodeNuqRows({part, bits_, dim, block_, tile}, Numbers(layer, head));
    return;
  }
  const Half* const params =
      reinterpret_cast<const Half*>((one_scale_ ? shared : part) + word_bytes_);
  DecodeNuqRows({part, bits_, tokens, dim, tile},
                {&numbers_[int64_t{layer} * kNuqTable], params, params + block_});
}

}  // namespace kvring
