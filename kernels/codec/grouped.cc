// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/grouped.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "kernels/codec/codec_util.h"
#include "kernels/codec/page_angles.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/code_rows.h"
#include "kernels/rope.h"

namespace kvring {
namespace {

constexpr int kMaxHeadDim =
    512;  // CheckOptions of int and nf: at most so many channels, two a plane

struct Range {
  float lo = 0.0f, hi = 0.0f;
};

struct GroupParams {
  float scale = 0.0f, offset = 0.0f;  // fp16-representable
};

// Rows up to which codes are looked up where they are multiplied.
constexpr int64_t kDirectCodeRows = 12;

void FetchLines(const uint8_t* at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

void StoreHalf(float x, uint8_t* at) {
  const Half h = FloatToHalfSaturated(x);
  std::memcpy(at, &h, 2);
}

float LoadHalf(const uint8_t* at) {
  Half h;
  std::memcpy(&h, at, 2);
  return HalfToFloat(h);
}

class GroupedCodec final : public Codec {
 public:
  GroupedCodec(const CodecRow& row, const CodecOptions& options, const Grid& grid)
      : shape_(options.shape), grid_(grid), codes_(1 << grid.bits), block_(shape_.block_tokens) {
    traits_.id = CanonicalId(row, options);
    traits_.k_scope = ParamScope::kPage;
    traits_.sink_tokens = kGroupedSinks;
    traits_.dk = shape_.dk;
    traits_.dv = shape_.dv;
    if (!HasFlag(options, "post-rope")) {
      traits_.key_domain = KeyDomain::kPreRope;
      angles_ = MakePageAngles(options.rope, static_cast<int>(block_));
    }
    for (int j = 0; j + 1 < codes_; ++j) edges_[j] = 0.5f * (grid.numbers[j] + grid.numbers[j + 1]);
    for (int j = 0; j < 16; ++j) repeated_[j] = grid_.numbers[j % codes_];
    map_.kind = grid_.kind;
    map_.table = grid_.numbers.data();
    key_words_ = WordBytes(shape_.dk, block_, grid.bits);
    value_words_ = WordBytes(block_, shape_.dv, grid.bits);
    size_ = {key_words_ + 4LL * shape_.dk, value_words_ + 4 * block_};
  }

  const CodecTraits& traits() const override { return traits_; }
  PageBytes PageSize(int, int) const override { return size_; }
  Error Encode(const EncodeArgs& args) const override;
  int64_t AttendPacked(const AttendArgs& args, std::span<const PageView> pages, int64_t first,
                       int64_t last, AttendScratch& scratch,
                       const SoftmaxPartial& partial) const override;
  void DecodeKeys(int layer, int head, const float* state, const PageView& page,
                  float* kt) const override;
  void DecodeValues(int layer, int head, const float* state, const PageView& page,
                    float* v) const override;

 private:
  GroupParams FindParams(Range range) const;
  uint8_t Nearest(float x, const GroupParams& params) const;
  void EncodeKeys(const EncodeArgs& args, int head) const;
  void EncodeValues(const EncodeArgs& args, int head) const;
  void EncodeRow(const float* x, int64_t n, Range range, int64_t row, uint8_t* words,
                 uint8_t* params, int64_t param_rows) const;
  CodeRows RowsOf(const uint8_t* words, int64_t word_bytes, int64_t param_rows, int64_t rows,
                  int64_t lanes) const;
  void Unpack(const CodeRows& rows, float* out) const;
  bool IsWhole(const PageView& page) const { return page.sinks == 0 && page.tokens == block_; }

  KvShape shape_;
  Grid grid_;
  int codes_;
  int64_t block_;
  std::array<float, 16> repeated_{};  // grid_.numbers, over and over
  float edges_[15] = {};              // between neighbouring numbers
  CodeMap map_;
  int64_t key_words_ = 0, value_words_ = 0;
  PageBytes size_;
  std::vector<std::shared_ptr<const PageAngles>>
      angles_;  // [layers]; empty when keys are kept after RoPE
  CodecTraits traits_;
};

// Rows reach codecs as fp16 numbers, so lo is exact; the scale is rounded, and a positive one never to zero.
GroupParams GroupedCodec::FindParams(Range range) const {
  const float first = grid_.numbers[0], last = grid_.numbers[codes_ - 1];
  GroupParams params;
  params.scale = HalfToFloat(FloatToHalfSaturated((range.hi - range.lo) / (last - first)));
  if (params.scale == 0.0f && range.hi > range.lo) params.scale = 0x1p-24f;
  const float middle = range.lo + (range.hi - range.lo) * (-first / (last - first));
  params.offset = HalfToFloat(FloatToHalfSaturated(middle));
  return params;
}

uint8_t GroupedCodec::Nearest(float x, const GroupParams& params) const {
  if (params.scale == 0.0f) return 0;
  const float u = (x - params.offset) / params.scale;
  if (grid_.kind == CodeKind::kInteger) {
    return static_cast<uint8_t>(std::clamp(u + 0.5f, 0.0f, static_cast<float>(codes_ - 1)));
  }
  int code = 0;
  for (int j = 0; j + 1 < codes_; ++j) code += u > edges_[j];
  return static_cast<uint8_t>(code);
}

Range RangeOf(const float* x, int64_t n) {
  const auto [lo, hi] = std::minmax_element(x, x + n);
  return {*lo, *hi};
}

// One group: its codes into row `row` of words, its scale and offset into params [2][param_rows].
void GroupedCodec::EncodeRow(const float* x, int64_t n, Range range, int64_t row, uint8_t* words,
                             uint8_t* params, int64_t param_rows) const {
  const GroupParams found = FindParams(range);
  std::vector<uint8_t> codes(n);
  for (int64_t i = 0; i < n; ++i) codes[i] = Nearest(x[i], found);
  PackRow(codes.data(), n, grid_.bits, row, words);
  StoreHalf(found.scale, params + 2 * row);
  StoreHalf(found.offset, params + 2 * (param_rows + row));
}

void GroupedCodec::EncodeKeys(const EncodeArgs& args, int head) const {
  const int64_t sinks = args.block_begin == 0 ? kGroupedSinks : 0;
  std::vector<float> channel(block_);
  for (int64_t i = 0; i < shape_.dk; ++i) {
    for (int64_t t = 0; t < block_; ++t)
      channel[t] = args.k[(t * shape_.kv_heads + head) * shape_.dk + i];
    EncodeRow(channel.data(), block_, RangeOf(channel.data() + sinks, block_ - sinks), i,
              args.pages[head], args.pages[head] + key_words_, shape_.dk);
  }
}

void GroupedCodec::EncodeValues(const EncodeArgs& args, int head) const {
  uint8_t* const part = args.pages[head] + size_.k;
  for (int64_t t = 0; t < args.count; ++t) {
    const float* const v = args.v + (t * shape_.kv_heads + head) * shape_.dv;
    EncodeRow(v, shape_.dv, RangeOf(v, shape_.dv), args.first + t, part, part + value_words_,
              block_);
  }
}

Error GroupedCodec::Encode(const EncodeArgs& args) const {
  const int64_t vectors = static_cast<int64_t>(args.count) * shape_.kv_heads;
  if (args.first != 0 || args.count != block_)
    return {"a codec with parameters per page was given part of a block"};
  if (!AllFinite(args.k, vectors * shape_.dk) || !AllFinite(args.v, vectors * shape_.dv))
    return kNotFinite;
  for (int head = 0; head < shape_.kv_heads; ++head) {
    EncodeKeys(args, head);
    EncodeValues(args, head);
  }
  return {};
}

// Of a part of a page: words, then scales and offsets of `param_rows` rows.
CodeRows GroupedCodec::RowsOf(const uint8_t* words, int64_t word_bytes, int64_t param_rows,
                              int64_t rows, int64_t lanes) const {
  CodeRows found;
  found.words = words;
  found.bits = grid_.bits;
  found.rows = rows;
  found.lanes = lanes;
  found.numbers = repeated_.data();
  found.scale = words + word_bytes;
  found.offset = found.scale + 2 * param_rows;
  return found;
}

void GroupedCodec::Unpack(const CodeRows& rows, float* out) const {
  if (HaveCodeTables()) return DecodeCodes(rows, out);
  std::vector<float> scale(rows.rows), offset(rows.rows);
  for (int64_t r = 0; r < rows.rows; ++r) {
    scale[r] = LoadHalf(rows.scale + 2 * r);
    offset[r] = LoadHalf(rows.offset + 2 * r);
  }
  UnpackRows(map_, {rows.words, rows.bits, rows.rows, rows.lanes, rows.lanes, rows.lanes,
                    scale.data(), offset.data(), out});
}

// The same steps as over tiles. Keys that have to be turned are a tile all the same, which stays in the first-level cache alone.
int64_t GroupedCodec::AttendPacked(const AttendArgs& args, std::span<const PageView> pages,
                                   int64_t first, int64_t last, AttendScratch& scratch,
                                   const SoftmaxPartial& partial) const {
  const PageView& page = pages.front();
  if (last - first > kDirectCodeRows || shape_.dv % 16 != 0 || !IsWhole(page) || !HaveCodeTables())
    return 0;
  const CodeRows keys = RowsOf(page.packed, key_words_, shape_.dk, shape_.dk, block_);
  const CodeRows values =
      RowsOf(page.packed + size_.k, value_words_, block_, page.tokens, shape_.dv);
  const float* const q = args.packed_q == nullptr ? args.raw_q : args.packed_q;
  AttendTileArgs tile = TileOf(args, page, q, first, last, partial);
  const int64_t ahead = BytesAhead(args, page);
  FetchLines(page.packed + size_.k + value_words_ + ahead, size_.v - value_words_);
  if (angles_.empty()) {
    FetchLines(page.packed + key_words_ + ahead, size_.k - key_words_);
    tile.code_kt = &keys;
    tile.k_ahead = ahead;
  } else {
    FetchLines(page.packed + ahead, size_.k);
    float* const kt = TileRoom(scratch.kt, shape_.dk * block_ + kTilePad);
    DecodeKeys(args.layer, args.head, args.state, page, kt);
    tile.kt = kt;
  }
  tile.code_v = &values;
  tile.v_ahead = ahead;
  AttendTile(tile, scratch);
  return 1;
}

void GroupedCodec::DecodeKeys(int layer, int, const float*, const PageView& page, float* kt) const {
  const CodeRows rows = RowsOf(page.packed, key_words_, shape_.dk, shape_.dk, block_);
  float base[kMaxHeadDim];
  if (!angles_.empty()) RopeAngles(angles_[layer]->table(), page.begin, base);
  // Sinks are turned with the rest of the tile, and come before.
  if (IsWhole(page) && !angles_.empty() && HaveCodeTables()) {
    const PageAngles& offsets = *angles_[layer];
    return DecodeTurned(rows, offsets.table(), offsets.Cosines(), offsets.Sines(), base, kt);
  }
  Unpack(rows, kt);
  OverlayKeySinks(page, shape_.dk, block_, kt);
  if (!angles_.empty()) angles_[layer]->RotateTile(base, kt);
}

void GroupedCodec::DecodeValues(int, int, const float*, const PageView& page, float* v) const {
  Unpack(RowsOf(page.packed + size_.k, value_words_, block_, page.tokens, shape_.dv), v);
  OverlayValueSinks(page, shape_.dv, static_cast<int>(block_), v);
}

}  // namespace

std::unique_ptr<Codec> MakeGroupedCodec(const CodecRow& row, const CodecOptions& options,
                                        const Grid& grid) {
  return std::make_unique<GroupedCodec>(row, options, grid);
}

}  // namespace kvring
