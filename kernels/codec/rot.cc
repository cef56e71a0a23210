// SPDX-License-Identifier: Apache-2.0
// rot8, rot4, rot3, rot2: keys y = T (w o (RoPE_n(k) - RoPE_n(mu))), values y = T v, codes of Lloyd-Max tables, one byte of
// scale per (token, head, side), no calibration (rotated-and-transform 2).
//
// Page, B slots, b bits, G = ceil(d / 64) scale groups with g64, else 1:
//   K part: codes u32 [WordRows(dk, b)][B] (rows are coefficients), scale bytes e [G][B]
//   V part: codes u32 [WordRows(B, b)][dv] (rows are slots),        scale bytes e [G][B]
// Options: no-mean (mu = 0), no-balance (w = 1), g64 (one scale per 64 coefficients), trellis: codes as streams of a trellis
// code (trellis_stream.h), as many bits of them; in either part streams u8 [B][bytes of a stream] in place of the words.
#include <algorithm>
#include <optional>

#include "kernels/codec/bit_words.h"
#include "kernels/codec/codec_util.h"
#include "kernels/codec/hadamard.h"
#include "kernels/codec/lloyd_max.h"
#include "kernels/codec/page_angles.h"
#include "kernels/codec/rot_reader.h"
#include "kernels/codec/rot_state.h"
#include "kernels/codec/trellis_encode.h"
#include "kernels/codec/trellis_stream.h"

namespace kvring {
namespace {

constexpr int kGroup = 64;  // coefficients a scale with g64

// One side (keys or values) of a page.
struct Side {
  int dim = 0;
  int groups = 1;
  int64_t word_bytes = 0, bytes = 0;     // codes, all
  std::optional<TrellisStream> trellis;  // in place of words

  int GroupRows(int group) const {
    return groups == 1 ? dim : std::min(kGroup, dim - group * kGroup);
  }
};

Side MakeSide(int dim, int64_t word_bytes, bool grouped, int block) {
  Side side;
  side.dim = dim;
  side.groups = grouped ? (dim + kGroup - 1) / kGroup : 1;
  side.word_bytes = word_bytes;
  side.bytes = word_bytes + static_cast<int64_t>(side.groups) * block;
  return side;
}

// The side's codes on a trellis.
void UseTrellis(Side& side, int bits, int block) {
  side.trellis.emplace(std::vector<uint8_t>(side.dim, static_cast<uint8_t>(bits)),
                       side.groups == 1 ? side.dim : kGroup);
  side.word_bytes = side.trellis->bytes() * block;
  side.bytes = side.word_bytes + static_cast<int64_t>(side.groups) * block;
}

// Vectors on their way into pages: one a lane.
struct Batch {
  alignas(64) float y[kMaxCodeRows * kLanes];
  uint8_t codes[kMaxCodeRows * kLanes];
  uint8_t e[kLanes];
  int32_t saturated[kLanes];
  int64_t first = 0;  // vector of lane 0, counted [slot][head]
  int count = 0;
};

class RotCodec final : public Codec {
 public:
  RotCodec(const CodecRow& row, const CodecOptions& options)
      : shape_(options.shape),
        table_(LloydMaxTable(row.bits)),
        block_(shape_.block_tokens),
        key_transform_(shape_.dk),
        value_transform_(shape_.dv),
        state_(shape_, *options.rope[0], !HasFlag(options, "no-mean"),
               !HasFlag(options, "no-balance")),
        angles_(MakePageAngles(options.rope, block_)),
        key_(MakeSide(shape_.dk, WordBytes(shape_.dk, block_, row.bits), HasFlag(options, "g64"),
                      block_)),
        value_(MakeSide(shape_.dv, WordBytes(block_, shape_.dv, row.bits), HasFlag(options, "g64"),
                        block_)),
        reader_(ReaderOptions(options)) {
    const bool has_state = state_.floats() > 0;
    if (HasFlag(options, "trellis")) {
      UseTrellis(key_, row.bits, block_);
      UseTrellis(value_, row.bits, block_);
    }
    traits_.id = CanonicalId(row, options);
    traits_.k_scope = has_state ? ParamScope::kPrefix : ParamScope::kToken;
    traits_.sink_tokens = kRotSinks;
    traits_.prefix_tokens = has_state ? kRotPrefix : 0;
    traits_.dk = shape_.dk;
    traits_.dv = shape_.dv;
  }

  const CodecTraits& traits() const override { return traits_; }
  PageBytes PageSize(int, int) const override { return {key_.bytes, value_.bytes}; }
  int64_t SumFloats() const override { return state_.SumFloats(); }
  int64_t StateFloats() const override { return state_.floats(); }
  void Observe(const ObserveArgs& args, float* sums) const override { state_.Observe(args, sums); }
  void Freeze(int, int, std::span<const float* const> block_sums, float* state) const override {
    state_.Freeze(block_sums, state);
  }

  void ToValueDomain(int, float* v, int64_t tokens) const override {
    value_transform_.Rows(v, tokens * shape_.kv_heads, value_transform_.signs().data(), v);
  }
  void FinishOutput(int, int, float* o, int64_t rows) const override {
    value_transform_.RowsInverse(o, rows, value_transform_.signs().data(), o);
  }
  void PrepareQuery(int layer, int head, const float* state, const float* raw_q, int64_t rows,
                    float* packed_q) const override;

  Error Encode(const EncodeArgs& args) const override;
  bool PreparePacked(const AttendArgs& args, PackedQueries& queries) const override {
    if (key_.trellis || (StateFloats() > 0 && args.state == nullptr)) return false;
    return reader_.Prepare(args, state_.Mean(args.state), queries);
  }
  int64_t AttendPacked(const AttendArgs& args, std::span<const PageView> pages, int64_t first,
                       int64_t last, AttendScratch& scratch,
                       const SoftmaxPartial& partial) const override {
    return reader_.Attend(args, pages, first, last, state_.Mean(args.state), scratch, partial);
  }
  void DecodeKeys(int layer, int head, const float* state, const PageView& page,
                  float* kt) const override;
  void DecodeValues(int layer, int head, const float* state, const PageView& page,
                    float* v) const override;

 private:
  RotReaderOptions ReaderOptions(const CodecOptions& options) const;
  void KeyFactors(const float* state, float* factors) const;
  void EncodeKeys(const EncodeArgs& args, Batch& batch) const;
  void EncodeValues(const EncodeArgs& args, Batch& batch) const;
  void GatherKey(const EncodeArgs& args, const float* base, int slot, int head, int lane,
                 Batch& batch) const;
  void EncodeGroup(const Side& side, int group, Batch& batch) const;
  void EncodeBatch(const EncodeArgs& args, const Side& side, Batch& batch, bool keys) const;
  void StoreLane(const EncodeArgs& args, const Side& side, int lane, bool keys, Batch& batch) const;

  KvShape shape_;
  const LloydMax& table_;
  int block_;
  Hadamard key_transform_, value_transform_;
  RotState state_;
  std::vector<std::shared_ptr<const PageAngles>> angles_;  // [layers]
  Side key_, value_;
  RotReader reader_;
  CodecTraits traits_;
};

RotReaderOptions RotCodec::ReaderOptions(const CodecOptions& options) const {
  RotReaderOptions reader;
  reader.form = {table_.bits, shape_.dk, shape_.dv, table_.unit, table_.level.data()};
  reader.block_tokens = block_;
  reader.grouped = key_.groups > 1 || value_.groups > 1;
  reader.k_word_bytes = key_.word_bytes;
  reader.k_bytes = key_.bytes;
  reader.v_word_bytes = value_.word_bytes;
  reader.rope = options.rope;
  return reader;
}

// D and w together: what keys are multiplied by before H.
void RotCodec::KeyFactors(const float* state, float* factors) const {
  state_.Weights(state, factors);
  for (int i = 0; i < shape_.dk; ++i) factors[i] *= key_transform_.signs()[i];
}

void RotCodec::PrepareQuery(int, int, const float* state, const float* raw_q, int64_t rows,
                            float* packed_q) const {
  float factors[kMaxCodeRows];
  state_.Weights(state, factors);
  for (int i = 0; i < shape_.dk; ++i) factors[i] = key_transform_.signs()[i] / factors[i];
  key_transform_.Rows(raw_q, rows, factors, packed_q);
}

Error RotCodec::Encode(const EncodeArgs& args) const {
  const int64_t vectors = static_cast<int64_t>(args.count) * shape_.kv_heads;
  if (!AllFinite(args.k, vectors * shape_.dk) || !AllFinite(args.v, vectors * shape_.dv))
    return kNotFinite;
  if (StateFloats() > 0 && args.state == nullptr)
    return {"rot: a token is encoded before the sequence's state is frozen"};
  Batch batch;
  for (batch.first = 0; batch.first < vectors; batch.first += kLanes) {
    batch.count = static_cast<int>(std::min<int64_t>(kLanes, vectors - batch.first));
    EncodeKeys(args, batch);
    EncodeValues(args, batch);
  }
  return {};
}

void RotCodec::EncodeKeys(const EncodeArgs& args, Batch& batch) const {
  float base[kMaxCodeRows];
  RopeAngles(angles_[args.layer]->table(), args.block_begin, base);
  std::fill_n(batch.y, shape_.dk * kLanes, 0.0f);
  for (int lane = 0; lane < batch.count; ++lane) {
    const int64_t vector = batch.first + lane;
    GatherKey(args, base, static_cast<int>(vector / shape_.kv_heads),
              static_cast<int>(vector % shape_.kv_heads), lane, batch);
  }
  key_transform_.Columns(batch.y, kLanes);
  EncodeBatch(args, key_, batch, true);
}

void RotCodec::GatherKey(const EncodeArgs& args, const float* base, int slot, int head, int lane,
                         Batch& batch) const {
  float factors[kMaxCodeRows], mean[kMaxCodeRows];
  const float* const state = args.state == nullptr ? nullptr : args.state + head * StateFloats();
  const float* const k = args.k + (static_cast<int64_t>(slot) * shape_.kv_heads + head) * shape_.dk;
  KeyFactors(state, factors);
  if (state_.mean()) {
    angles_[args.layer]->RotateAt(base, args.first + slot, state_.Mean(state), mean);
  } else {
    std::fill_n(mean, shape_.dk, 0.0f);
  }
  for (int i = 0; i < shape_.dk; ++i) batch.y[i * kLanes + lane] = (k[i] - mean[i]) * factors[i];
}

void RotCodec::EncodeValues(const EncodeArgs& args, Batch& batch) const {
  std::fill_n(batch.y, shape_.dv * kLanes, 0.0f);
  for (int lane = 0; lane < batch.count; ++lane) {
    const float* const v = args.v + (batch.first + lane) * shape_.dv;
    StoreColumn(v, shape_.dv, lane, kLanes, batch.y);
  }
  EncodeBatch(args, value_, batch, false);
}

// Codes and scales of the coefficients of one scale.
void RotCodec::EncodeGroup(const Side& side, int group, Batch& batch) const {
  const int row = group * kGroup, rows = side.GroupRows(group);
  const float* const y = batch.y + row * kLanes;
  uint8_t* const codes = batch.codes + row * kLanes;
  EncodeLanes(table_, y, rows, codes, batch.e, batch.saturated);
  if (!side.trellis) return;
  const std::vector<float> ones(rows, 1.0f);
  EncodeTrellisGroup({rows, side.trellis->bits().data() + row, ones.data()}, y, batch.count, codes,
                     batch.e);
}

void RotCodec::EncodeBatch(const EncodeArgs& args, const Side& side, Batch& batch,
                           bool keys) const {
  for (int group = 0; group < side.groups; ++group) {
    EncodeGroup(side, group, batch);
    for (int lane = 0; lane < batch.count; ++lane) {
      const int64_t vector = batch.first + lane;
      const int slot = args.first + static_cast<int>(vector / shape_.kv_heads);
      uint8_t* const page = args.pages[vector % shape_.kv_heads] + (keys ? 0 : key_.bytes);
      page[side.word_bytes + static_cast<int64_t>(group) * block_ + slot] = batch.e[lane];
      const bool sink =
          args.block_begin + slot < kRotSinks;  // read exact: what its code lost counts for nothing
      if (args.saturated != nullptr && !sink) *args.saturated += batch.saturated[lane];
    }
  }
  for (int lane = 0; lane < batch.count; ++lane) StoreLane(args, side, lane, keys, batch);
}

void RotCodec::StoreLane(const EncodeArgs& args, const Side& side, int lane, bool keys,
                         Batch& batch) const {
  uint8_t column[kMaxCodeRows];
  for (int i = 0; i < side.dim; ++i) column[i] = batch.codes[i * kLanes + lane];
  const int64_t vector = batch.first + lane;
  const int64_t slot = args.first + vector / shape_.kv_heads;
  uint8_t* const page = args.pages[vector % shape_.kv_heads];
  if (side.trellis) {
    side.trellis->Put(column, 1, page + (keys ? 0 : key_.bytes) + slot * side.trellis->bytes());
  } else if (keys) {
    PackColumn(column, side.dim, table_.bits, slot, block_, page);
  } else {
    PackRow(column, side.dim, table_.bits, slot, page + key_.bytes);
  }
}

void RotCodec::DecodeKeys(int layer, int, const float* state, const PageView& page,
                          float* kt) const {
  float factors[kMaxCodeRows], column[kMaxCodeRows], base[kMaxCodeRows];
  const PageAngles& angles = *angles_[layer];
  KeyFactors(state, factors);
  if (state_.mean()) {
    RopeAngles(angles.table(), page.begin, base);
    angles.SpreadTile(base, state_.Mean(state), factors, page.tokens, kt);
  } else {
    std::fill_n(kt, static_cast<int64_t>(shape_.dk) * block_, 0.0f);
  }
  const int sinks = std::min(page.sinks, page.tokens);
  for (int t = 0; t < sinks; ++t) {
    LoadHalfRow(page.sink_k + t * page.sink_k_stride, shape_.dk, column);
    for (int i = 0; i < shape_.dk; ++i) column[i] *= factors[i];
    StoreColumn(column, shape_.dk, t, block_, kt);
  }
  key_transform_.Columns(kt, block_);
  std::vector<float> scale(block_,
                           0.0f);  // zero for sinks and unused slots: codes there add nothing
  for (int group = 0; group < key_.groups; ++group) {
    const uint8_t* const e = page.packed + key_.word_bytes + static_cast<int64_t>(group) * block_;
    const int64_t row = static_cast<int64_t>(group) * kGroup;
    if (key_.trellis) {
      for (int t = sinks; t < page.tokens; ++t) scale[t] = ScaleValue(e[t]);
      key_.trellis->AddKeys(page.packed, static_cast<int>(row), key_.GroupRows(group), block_,
                            scale.data(), kt + row * block_);
      continue;
    }
    for (int t = sinks; t < page.tokens; ++t) scale[t] = ScaleValue(e[t]) * table_.unit;
    AddLevels(page.packed + WordBytes(row, block_, table_.bits), table_.bits, key_.GroupRows(group),
              block_, table_.level.data(), scale.data(), kt + row * block_);
  }
}

void RotCodec::DecodeValues(int, int, const float*, const PageView& page, float* v) const {
  const uint8_t* const part = page.packed + key_.bytes;
  std::vector<float> scale(page.tokens), offset(page.tokens, 0.0f);
  CodeMap map;
  map.kind = CodeKind::kLevel;
  map.level = table_.level.data();
  for (int group = 0; group < value_.groups; ++group) {
    const uint8_t* const e = part + value_.word_bytes + static_cast<int64_t>(group) * block_;
    if (value_.trellis) {
      const std::vector<float> ones(value_.dim, 1.0f);
      for (int t = 0; t < page.tokens; ++t) scale[t] = ScaleValue(e[t]);
      value_.trellis->ReadValues(part, group * kGroup, value_.GroupRows(group), page.tokens,
                                 scale.data(), ones.data(), value_.dim, v + group * kGroup);
      continue;
    }
    for (int t = 0; t < page.tokens; ++t) scale[t] = ScaleValue(e[t]) * table_.unit;
    UnpackArgs args{part + group * kGroup * 4, table_.bits, page.tokens,
                    value_.GroupRows(group),   shape_.dv,   shape_.dv};
    args.scale = scale.data();
    args.offset = offset.data();
    args.out = v + group * kGroup;
    UnpackRows(map, args);
  }
  OverlayValueSinks(page, shape_.dv, block_, v);
}

std::string CheckRot(const CodecRow& row, const CodecOptions& options) {
  std::string wrong = CheckOptions(
      row, options, {.min_dim = 16, .max_dim = kMaxCodeRows, .block_multiple = 16, .rope = true});
  if (!wrong.empty()) return wrong;
  if (kRotPrefix % options.shape.block_tokens != 0) {
    return std::string("codec ") + row.name +
           " needs blocks that divide its prefix of 128 tokens, got " +
           std::to_string(options.shape.block_tokens);
  }
  for (const RopeTable* table : options.rope) {
    if (table->pairing != options.rope[0]->pairing ||
        table->planes() != options.rope[0]->planes()) {
      return std::string("codec ") + row.name + " needs the same channels rotated in every layer";
    }
  }
  return "";
}

}  // namespace

CodecMade MakeRot(const CodecRow& row, const CodecOptions& options) {
  CodecMade made;
  made.error = CheckRot(row, options);
  if (made.error.empty()) made.codec = std::make_unique<RotCodec>(row, options);
  return made;
}

}  // namespace kvring
