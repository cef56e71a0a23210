// SPDX-License-Identifier: Apache-2.0
// tc at any rate from 1 to 6 bits: calibrated transform coding (rotated-and-transform 4). Keys y = (RoPE_n(k) - RoPE_n(mu)) A,
// values y = (v - mu) A with A = G^(1/2) U; z = y / sqrt(lambda) in Lloyd-Max codes, as many bits as the loss asks for.
//
// Page, B slots; sizes differ between (layer, head, side); classes of 8 coefficients at 0..6 bits, widest first:
//   K part: gain bytes [ceil(dk / 64)][B], then class after class its planes (tc_planes.h), b * B bytes each
//   V part: the same of values
// A gain byte e stands for 2^((e - 112) / 8), 0 for zeros; a coefficient decodes to mean + gain * number[code] * sqrt(lambda).
//
// `trellis` keeps the codes as streams of a trellis code instead (trellis_stream.h), as many bits of them: in either part
// streams u8 [B][bytes of a stream], then the gain bytes.
//
// `adapt` turns the basis to the sequence (tc_adapt.h): z = (y U) / sqrt(lambda'); `static` says that it is not.
//
// The value domain is y, without the division by sqrt(lambda): exact rows are fp16 there, and y keeps the size of v (A is
// scaled to a mean square of 1), while z of coefficients with little variance would lose what fp16 can hold of large ones.
// In y the rounding is relative to what the loss sees of a value.
#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/codec/codec_util.h"
#include "kernels/codec/lloyd_max.h"
#include "kernels/codec/page_angles.h"
#include "kernels/codec/small_matrix.h"
#include "kernels/codec/tc_adapt.h"
#include "kernels/codec/tc_levels.h"
#include "kernels/codec/tc_model.h"
#include "kernels/codec/tc_planes.h"
#include "kernels/codec/tc_reader.h"
#include "kernels/codec/trellis_encode.h"
#include "kernels/codec/trellis_stream.h"

namespace kvring {
namespace {

constexpr int kMaxDim = 512;

// What one side of one (layer, head) needs while it runs; views into the tables but for what is derived.
struct Side {
  TcSide table;
  std::vector<uint8_t> bits;             // [classes]
  std::vector<int64_t> class_begin;      // [classes] offset of a class in the side's part
  std::vector<float> scale;              // [padded dim] sqrt(lambda), zeros beyond dim
  std::vector<float> inverse_scale;      // [dim]
  std::vector<float> to_query;           // keys: [dim][dim], transpose of the inverse
  std::optional<TrellisStream> trellis;  // instead of classes
  int64_t gains = 0;                     // offset of the gain bytes in the side's part
  int64_t bytes = 0;

  int dim() const { return table.dim; }
  int groups() const { return TcGroups(table.dim); }
  int classes() const { return static_cast<int>(bits.size()); }
};

// The side's codes on a trellis.
void UseTrellis(Side& side, int block) {
  std::vector<uint8_t> bits(side.dim());
  for (int i = 0; i < side.dim(); ++i) bits[i] = side.bits[i / kTcClass];
  side.trellis.emplace(bits, kTcGroup);
  side.gains = side.trellis->bytes() * block;
  side.bytes = side.gains + int64_t{side.groups()} * block;
}

Side MakeSide(const TcSide& table, std::vector<uint8_t> bits, int block, bool keys) {
  Side side;
  side.table = table;
  side.bits = std::move(bits);
  side.bytes = int64_t{side.groups()} * block;
  for (const uint8_t b : side.bits) {
    side.class_begin.push_back(side.bytes);
    side.bytes += ClassBytes(b, block);
  }
  side.scale.assign(side.bits.size() * kTcClass, 0.0f);
  side.inverse_scale.resize(table.dim);
  for (int i = 0; i < table.dim; ++i) {
    side.scale[i] = std::sqrt(table.lambda[i]);
    side.inverse_scale[i] = 1.0f / side.scale[i];
  }
  if (!keys) return side;
  side.to_query.resize(static_cast<size_t>(table.dim) * table.dim);
  for (int i = 0; i < table.dim; ++i) {
    for (int j = 0; j < table.dim; ++j)
      side.to_query[i * table.dim + j] = table.inverse[j * table.dim + i];
  }
  return side;
}

// y in the sequence's own basis: y U, or y where there is none.
void Turn(const TcTurn& turn, int dim, const float* y, float* out) {
  if (turn.basis == nullptr) {
    std::copy_n(y, dim, out);
  } else {
    RowsTimesMatrix(y, 1, turn.basis, dim, dim, out);
  }
}

// Rows of a tile from the sequence's basis back to that of the tables, in place: the transpose, since U is orthogonal up to
// its rounding to fp16 (an error of some 2^-12 of a coefficient, far below any code's).
void TurnBack(const TcTurn& turn, int dim, int rows, float* tile) {
  std::vector<float> transpose(static_cast<size_t>(dim) * dim), row(dim);
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j) transpose[j * dim + i] = turn.basis[i * dim + j];
  }
  for (int t = 0; t < rows; ++t) {
    std::copy_n(tile + int64_t{t} * dim, dim, row.data());
    RowsTimesMatrix(row.data(), 1, transpose.data(), dim, dim, tile + int64_t{t} * dim);
  }
}

void Normalize(const Side& side, const TcTurn& turn, float* y) {
  for (int i = 0; i < side.dim(); ++i)
    y[i] *= turn.basis == nullptr ? side.inverse_scale[i] : 1.0f / turn.deviation[i];
}

// Normalized coefficients of up to kLanes slots of one head, and their codes.
struct Batch {
  alignas(64) float z[kMaxDim * kLanes];
  uint8_t codes[(kMaxDim + kTcClass) * kLanes];
  uint8_t e[kLanes];
  int32_t saturated[kLanes];
  int first = 0, count = 0;  // slot of lane 0, lanes
};

class TcCodec final : public Codec {
 public:
  TcCodec(const CodecRow& row, const CodecOptions& options)
      : shape_(options.shape),
        block_(shape_.block_tokens),
        angles_(MakePageAngles(options.rope, block_)) {
    const auto model = std::make_shared<const TcModel>(options.tables, shape_);
    TcModel::Bits bits = model->Allocate(row.rate);
    if (!HasFlag(options, "trellis"))
      reader_ = std::make_unique<const TcReader>(model, bits, shape_, options.rope);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const size_t i = keys_.size();
        keys_.push_back(MakeSide(model->Key(layer, head), std::move(bits.keys[i]), block_, true));
        values_.push_back(
            MakeSide(model->Value(layer, head), std::move(bits.values[i]), block_, false));
      }
    }
    if (HasFlag(options, "trellis")) {
      for (auto* sides : {&keys_, &values_}) {
        for (Side& side : *sides) UseTrellis(side, block_);
      }
    }
    if (HasFlag(options, "adapt"))
      adapt_ = std::make_unique<const TcAdapt>(model, shape_, options.rope);
    model_ = model;  // keeps the tables
    traits_.id = std::string(row.name) + (adapt_ ? ":adapt" : "") +
                 (HasFlag(options, "trellis") ? ":trellis" : "");
    traits_.k_scope = traits_.v_scope = adapt_ ? ParamScope::kPrefix : ParamScope::kModel;
    traits_.prefix_tokens = adapt_ ? kTcPrefix : 0;
    traits_.sink_tokens = kTcSinks;
    traits_.dk = shape_.dk;
    traits_.dv = shape_.dv;
    traits_.tables_hash = options.tables->hash;
  }

  const CodecTraits& traits() const override { return traits_; }
  PageBytes PageSize(int layer, int head) const override {
    return {Key(layer, head).bytes, Value(layer, head).bytes};
  }

  int64_t SumFloats() const override { return adapt_ ? adapt_->SumFloats() : 0; }
  int64_t StateFloats() const override { return adapt_ ? adapt_->StateFloats() : 0; }
  void Observe(const ObserveArgs& args, float* sums) const override {
    if (adapt_) adapt_->Observe(args, sums);
  }
  void Freeze(int layer, int head, std::span<const float* const> block_sums,
              float* state) const override {
    if (adapt_) adapt_->Freeze(layer, head, block_sums, state);
  }

  void ToValueDomain(int layer, float* v, int64_t tokens) const override;
  void FinishOutput(int layer, int head, float* o, int64_t rows) const override;
  void PrepareQuery(int layer, int head, const float* state, const float* raw_q, int64_t rows,
                    float* packed_q) const override;
  Error Encode(const EncodeArgs& args) const override;
  bool PreparePacked(const AttendArgs& args, PackedQueries& queries) const override {
    if (reader_ == nullptr || (adapt_ && args.state == nullptr)) return false;
    return reader_->Prepare(args, ValueTurn(args.state), queries);
  }
  int64_t AttendPacked(const AttendArgs& args, std::span<const PageView> pages, int64_t first,
                       int64_t last, AttendScratch& scratch,
                       const SoftmaxPartial& partial) const override {
    return reader_ == nullptr ? 0 : reader_->Attend(args, pages, first, last, scratch, partial);
  }
  void FinishPacked(const AttendArgs& args, AttendScratch& scratch,
                    const SoftmaxPartial& partial) const override {
    reader_->Finish(args, scratch, partial);
  }
  void DecodeKeys(int layer, int head, const float* state, const PageView& page,
                  float* kt) const override;
  void DecodeValues(int layer, int head, const float* state, const PageView& page,
                    float* v) const override;

 private:
  const Side& Key(int layer, int head) const { return keys_[layer * shape_.kv_heads + head]; }
  const Side& Value(int layer, int head) const { return values_[layer * shape_.kv_heads + head]; }
  TcTurn KeyTurn(const float* state) const { return adapt_ ? adapt_->Key(state) : TcTurn{}; }
  TcTurn ValueTurn(const float* state) const { return adapt_ ? adapt_->Value(state) : TcTurn{}; }
  // State of a head among those of all.
  const float* HeadState(const EncodeArgs& args, int head) const {
    return args.state == nullptr ? nullptr : args.state + head * StateFloats();
  }
  void GatherKeys(const EncodeArgs& args, int head, const float* base, Batch& batch) const;
  void GatherValues(const EncodeArgs& args, int head, Batch& batch) const;
  void EncodeBatch(const EncodeArgs& args, const Side& side, const TcTurn& turn, Batch& batch,
                   bool keys, uint8_t* part) const;

  KvShape shape_;
  int block_;
  std::vector<std::shared_ptr<const PageAngles>> angles_;  // [layers]
  std::shared_ptr<const TcModel> model_;
  std::unique_ptr<const TcAdapt> adapt_;    // null: the calibrated basis as it is
  std::vector<Side> keys_, values_;         // [layers * kv_heads]
  std::unique_ptr<const TcReader> reader_;  // null: pages are read as tiles
  CodecTraits traits_;
};

void TcCodec::ToValueDomain(int layer, float* v, int64_t tokens) const {
  float centred[kMaxDim];
  for (int64_t r = 0; r < tokens * shape_.kv_heads; ++r) {
    const TcSide& side = Value(layer, static_cast<int>(r % shape_.kv_heads)).table;
    float* const row = v + r * side.dim;
    for (int i = 0; i < side.dim; ++i) centred[i] = row[i] - side.mean[i];
    RowsTimesMatrix(centred, 1, side.basis, side.dim, side.dim, row);
  }
}

void TcCodec::FinishOutput(int layer, int head, float* o, int64_t rows) const {
  const TcSide& side = Value(layer, head).table;
  float y[kMaxDim];
  for (int64_t r = 0; r < rows; ++r) {
    float* const row = o + r * side.dim;
    std::copy_n(row, side.dim, y);
    RowsTimesMatrix(y, 1, side.inverse, side.dim, side.dim, row);
    for (int i = 0; i < side.dim; ++i) row[i] += side.mean[i];
  }
}

void TcCodec::PrepareQuery(int layer, int head, const float* state, const float* raw_q,
                           int64_t rows, float* packed_q) const {
  const Side& side = Key(layer, head);
  const TcTurn turn = KeyTurn(state);
  const float* const scale = turn.basis == nullptr ? side.scale.data() : turn.deviation;
  float q[kMaxDim], y[kMaxDim];
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(raw_q + r * side.dim(), side.dim(), q);
    RowsTimesMatrix(q, 1, side.to_query.data(), side.dim(), side.dim(), y);
    float* const row = packed_q + r * side.dim();
    Turn(turn, side.dim(), y, row);
    for (int i = 0; i < side.dim(); ++i) row[i] *= scale[i];
  }
}

Error TcCodec::Encode(const EncodeArgs& args) const {
  const int64_t vectors = static_cast<int64_t>(args.count) * shape_.kv_heads;
  if (!AllFinite(args.k, vectors * shape_.dk) || !AllFinite(args.v, vectors * shape_.dv))
    return kNotFinite;
  if (adapt_ && args.state == nullptr)
    return {"tc: a token is encoded before the sequence's state is frozen"};
  float base[kMaxDim];
  RopeAngles(angles_[args.layer]->table(), args.block_begin, base);
  Batch batch;
  for (int head = 0; head < shape_.kv_heads; ++head) {
    const Side &key = Key(args.layer, head), &value = Value(args.layer, head);
    const int end = args.first + args.count;
    for (batch.first = args.first; batch.first < end; batch.first += kLanes) {
      batch.count = std::min(kLanes, end - batch.first);
      GatherKeys(args, head, base, batch);
      EncodeBatch(args, key, KeyTurn(HeadState(args, head)), batch, true, args.pages[head]);
      GatherValues(args, head, batch);
      EncodeBatch(args, value, ValueTurn(HeadState(args, head)), batch, false,
                  args.pages[head] + key.bytes);
    }
  }
  return {};
}

void TcCodec::GatherKeys(const EncodeArgs& args, int head, const float* base, Batch& batch) const {
  const Side& side = Key(args.layer, head);
  const TcTurn turn = KeyTurn(HeadState(args, head));
  float x[kMaxDim], y[kMaxDim];
  std::fill_n(batch.z, side.dim() * kLanes, 0.0f);
  for (int lane = 0; lane < batch.count; ++lane) {
    const int slot = batch.first + lane;
    const float* const k =
        args.k + (int64_t{slot - args.first} * shape_.kv_heads + head) * side.dim();
    angles_[args.layer]->RotateAt(base, slot, side.table.mean, x);
    for (int i = 0; i < side.dim(); ++i) x[i] = k[i] - x[i];
    RowsTimesMatrix(x, 1, side.table.basis, side.dim(), side.dim(), y);
    Turn(turn, side.dim(), y, x);
    Normalize(side, turn, x);
    StoreColumn(x, side.dim(), lane, kLanes, batch.z);
  }
}

void TcCodec::GatherValues(const EncodeArgs& args, int head, Batch& batch) const {
  const Side& side = Value(args.layer, head);
  const TcTurn turn = ValueTurn(HeadState(args, head));
  float z[kMaxDim];
  std::fill_n(batch.z, side.dim() * kLanes, 0.0f);
  for (int lane = 0; lane < batch.count; ++lane) {
    const int64_t row = batch.first + lane - args.first;
    const float* const y = args.v + (row * shape_.kv_heads + head) * side.dim();
    Turn(turn, side.dim(), y, z);
    Normalize(side, turn, z);
    StoreColumn(z, side.dim(), lane, kLanes, batch.z);
  }
}

// Codes and gains of the coefficients of one gain. weight: [dim].
void EncodeGroup(const Side& side, const float* weight, int group, Batch& batch) {
  const int row = group * kTcGroup, rows = std::min(kTcGroup, side.dim() - row);
  const float* const z = batch.z + row * kLanes;
  uint8_t* const codes = batch.codes + row * kLanes;
  EncodeTcGroup({rows, &side.bits[row / kTcClass], weight + row}, z, codes, batch.e,
                batch.saturated);
  if (!side.trellis) return;
  EncodeTrellisGroup({rows, side.trellis->bits().data() + row, weight + row}, z, batch.count, codes,
                     batch.e);
}

void TcCodec::EncodeBatch(const EncodeArgs& args, const Side& side, const TcTurn& turn,
                          Batch& batch, bool keys, uint8_t* part) const {
  float weight[kMaxDim];
  for (int i = 0; i < side.dim(); ++i) {
    weight[i] =
        turn.basis == nullptr ? side.table.lambda[i] : turn.deviation[i] * turn.deviation[i];
  }
  std::fill_n(batch.codes, side.classes() * kTcClass * kLanes, uint8_t{0});
  for (int group = 0; group < side.groups(); ++group) {
    EncodeGroup(side, weight, group, batch);
    for (int lane = 0; lane < batch.count; ++lane) {
      const int slot = batch.first + lane;
      part[side.gains + group * block_ + slot] = batch.e[lane];
      const bool sink =
          args.block_begin + slot < kTcSinks;  // read exact: what its code lost counts for nothing
      if (args.saturated != nullptr && !sink) *args.saturated += batch.saturated[lane];
    }
  }
  if (side.trellis) {
    for (int lane = 0; lane < batch.count; ++lane) {
      side.trellis->Put(batch.codes + lane, kLanes,
                        part + (batch.first + lane) * side.trellis->bytes());
    }
    return;
  }
  for (int c = 0; c < side.classes(); ++c) {
    for (int lane = 0; lane < batch.count; ++lane) {
      uint8_t codes[kTcClass];
      for (int r = 0; r < kTcClass; ++r) codes[r] = batch.codes[(c * kTcClass + r) * kLanes + lane];
      (keys ? PutKeyClass : PutValueClass)(codes, side.bits[c], batch.first + lane, block_,
                                           part + side.class_begin[c]);
    }
  }
}

void TcCodec::DecodeKeys(int layer, int head, const float* state, const PageView& page,
                         float* kt) const {
  const Side& side = Key(layer, head);
  const TcTurn turn = KeyTurn(state);
  const PageAngles& angles = *angles_[layer];
  const std::vector<float> ones(side.dim(), 1.0f);
  std::vector<float> tile(static_cast<size_t>(side.dim()) * block_), scale(block_);
  float base[kMaxDim], sink[kMaxDim];
  RopeAngles(angles.table(), page.begin, base);
  angles.SpreadTile(base, side.table.mean, ones.data(), page.tokens, tile.data());
  const int sinks = std::min(page.sinks, page.tokens);
  for (int t = 0; t < sinks; ++t) {
    LoadHalfRow(page.sink_k + t * page.sink_k_stride, side.dim(), sink);
    StoreColumn(sink, side.dim(), t, block_, tile.data());
  }
  ColumnsTimesMatrix(tile.data(), block_, side.table.basis, side.dim(), side.dim(), kt);
  if (turn.basis != nullptr) {
    std::copy_n(kt, side.dim() * block_, tile.data());
    ColumnsTimesMatrix(tile.data(), block_, turn.basis, side.dim(), side.dim(), kt);
  }
  for (int i = 0; i < side.dim(); ++i) {
    const float inverse = turn.basis == nullptr ? side.inverse_scale[i] : 1.0f / turn.deviation[i];
    for (int t = 0; t < block_; ++t) kt[i * block_ + t] *= inverse;
  }
  for (int group = 0; side.trellis && group < side.groups(); ++group) {
    const int row = group * kTcGroup;
    for (int t = sinks; t < page.tokens; ++t)
      scale[t] = ScaleValue(page.packed[side.gains + group * block_ + t]);
    side.trellis->AddKeys(page.packed, row, std::min(kTcGroup, side.dim() - row), block_,
                          scale.data(), kt + row * block_);
  }
  for (int c = 0; !side.trellis && c < side.classes(); ++c) {
    if (c * kTcClass % kTcGroup == 0) {  // the next gain; zero for sinks and unused slots
      const uint8_t* const e = page.packed + c * kTcClass / kTcGroup * block_;
      for (int t = sinks; t < page.tokens; ++t) scale[t] = ScaleValue(e[t]);
    }
    if (side.bits[c] == 0) continue;
    AddKeyClass(page.packed + side.class_begin[c], side.bits[c],
                std::min(kTcClass, side.dim() - c * kTcClass), block_,
                TcLevelsOf(side.bits[c]).number.data(), scale.data(), kt + c * kTcClass * block_);
  }
}

void TcCodec::DecodeValues(int layer, int head, const float* state, const PageView& page,
                           float* v) const {
  const Side& side = Value(layer, head);
  const TcTurn turn = ValueTurn(state);
  const uint8_t* const part = page.packed + Key(layer, head).bytes;
  const int64_t padded = int64_t{side.classes()} * kTcClass;
  std::vector<float> wide(padded == side.dim() ? 0 : padded * block_), scale(block_);
  std::vector<float> factor = side.scale;
  if (turn.basis != nullptr) std::copy_n(turn.deviation, side.dim(), factor.begin());
  float* const out = wide.empty() ? v : wide.data();
  for (int group = 0; side.trellis && group < side.groups(); ++group) {
    const int row = group * kTcGroup;
    for (int t = 0; t < page.tokens; ++t)
      scale[t] = ScaleValue(part[side.gains + group * block_ + t]);
    side.trellis->ReadValues(part, row, std::min(kTcGroup, side.dim() - row), page.tokens,
                             scale.data(), factor.data() + row, padded, out + row);
  }
  for (int c = 0; !side.trellis && c < side.classes(); ++c) {
    if (c * kTcClass % kTcGroup == 0) {
      const uint8_t* const e = part + c * kTcClass / kTcGroup * block_;
      for (int t = 0; t < page.tokens; ++t) scale[t] = ScaleValue(e[t]);
    }
    float* const to = out + c * kTcClass;
    if (side.bits[c] == 0) {
      for (int t = 0; t < page.tokens; ++t) std::fill_n(to + t * padded, kTcClass, 0.0f);
    } else {
      ReadValueClass(part + side.class_begin[c], side.bits[c], page.tokens, block_,
                     TcLevelsOf(side.bits[c]).number.data(), scale.data(),
                     factor.data() + c * kTcClass, padded, to);
    }
  }
  for (int t = 0; t < page.tokens && !wide.empty(); ++t)
    std::copy_n(out + t * padded, side.dim(), v + int64_t{t} * side.dim());
  if (turn.basis != nullptr) TurnBack(turn, side.dim(), page.tokens, v);
  OverlayValueSinks(page, side.dim(), block_, v);
}

std::string CheckTc(const CodecRow& row, const CodecOptions& options) {
  const std::string wrong = CheckOptions(
      row, options, {.min_dim = 8, .max_dim = kMaxDim, .block_multiple = 16, .rope = true});
  if (!wrong.empty()) return wrong;
  const std::string name = std::string("codec ") + row.name;
  const bool adapt = HasFlag(options, "adapt");
  if (adapt && HasFlag(options, "static")) return name + ": static and adapt exclude each other";
  if (adapt && kTcPrefix % options.shape.block_tokens != 0) {
    return name + ":adapt needs blocks that divide its prefix of " + std::to_string(kTcPrefix) +
           " tokens, got " + std::to_string(options.shape.block_tokens);
  }
  if (options.tables == nullptr)
    return name + " needs calibrated tables: make them with kvring calibrate --kv tc, or name a " +
           "file with --calibration";
  const std::string bad = TcModel::Check(*options.tables, options.shape);
  return bad.empty() ? "" : name + ": " + bad;
}

}  // namespace

CodecMade MakeTc(const CodecRow& row, const CodecOptions& options) {
  CodecMade made;
  made.error = CheckTc(row, options);
  if (made.error.empty()) made.codec = std::make_unique<TcCodec>(row, options);
  return made;
}

}  // namespace kvring
