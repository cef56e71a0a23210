// SPDX-License-Identifier: Apache-2.0
// nuq4, nuq3, nuq2 and their shares of outliers: KVQuant (Hooper et al., NeurIPS 2024) with the decisions of kvquant spec 4
// and 5. Non-uniform codes from calibrated tables, keys before RoPE by channel, values by token, outliers as residuals
// against the stored code.
//
// Page: K part, V part (nuq_side.h). Forms:
//   fixed slots (default)  outliers of a token over all heads, each in a slot of its own head's page
//   exact                  outliers of all heads as lists behind the parts of KV head 0's page, which grows (nuq_outliers.h)
//   token                  one scale for all heads of a token, in the page of KV head 0
//   paper                  exact and token: the form of the published numbers
#include <algorithm>
#include <cmath>

#include "kernels/codec/codec_util.h"
#include "kernels/codec/nuq_form.h"
#include "kernels/codec/nuq_outliers.h"
#include "kernels/codec/nuq_side.h"
#include "kernels/codec/page_angles.h"
#include "kernels/convert.h"
#include "kernels/cpu/nuq_keys.h"

namespace kvring {
namespace {

constexpr int kSides = 2;  // keys, values
constexpr int64_t kMaxIndex = 65536;
constexpr int kMaxDim = 512;

class NuqCodec final : public Codec {
 public:
  NuqCodec(const CodecRow& row, const CodecOptions& options, const NuqForm& form, NuqTables tables)
      : shape_(options.shape),
        form_(form),
        block_(shape_.block_tokens),
        listed_(form.exact && form.fraction > 0),
        sides_{{form, std::move(tables.k), block_, form.options.cap},
               {form, std::move(tables.v), block_, false}} {
    traits_.id = CanonicalId(row, options);
    traits_.sink_tokens = form.sinks;
    traits_.dk = shape_.dk;
    traits_.dv = shape_.dv;
    traits_.shared_page = form.token || form.exact;
    traits_.growing_page = listed_;
    traits_.tables_hash = options.tables->hash;
    if (form.options.post_rope) return;
    traits_.key_domain = KeyDomain::kPreRope;
    angles_ = MakePageAngles(options.rope, block_);
  }

  const CodecTraits& traits() const override { return traits_; }
  PageBytes PageSize(int layer, int head) const override;
  Error Encode(const EncodeArgs& args) const override;
  int64_t SharedPageBytes(const EncodeArgs& args) const override;
  void DecodeKeys(int layer, int head, const float* state, const PageView& page,
                  float* kt) const override;
  void DecodeValues(int layer, int head, const float* state, const PageView& page,
                    float* v) const override;

 private:
  struct Job;
  int SinksOf(int64_t block_begin) const;
  int64_t ListsOffset(int layer) const;
  int64_t PartOffset(int layer, int head, int side) const;
  void Begin(Job& job) const;
  void EncodeToken(Job& job, int slot) const;
  OutlierLosses StoreSlots(Job& job, int side, int slot) const;
  void StoreList(Job& job, int side, int slot) const;
  bool InOnePass(int layer, int head, const PageView& page) const;
  void DecodeSide(int layer, int head, int side, const PageView& page, float* tile) const;

  KvShape shape_;
  NuqForm form_;
  int block_;
  bool listed_;  // outliers in lists
  SideCodec sides_[kSides];
  std::vector<std::shared_ptr<const PageAngles>> angles_;  // [layers]; empty: keys after RoPE
  CodecTraits traits_;
};

// One call of Encode.
struct NuqCodec::Job {
  explicit Job(const EncodeArgs& a) : args(a) {}
  const EncodeArgs& args;
  int sinks = 0;
  int first = 0;                            // entries of tokens from here on are made anew
  std::vector<uint8_t*> parts[kSides];      // [heads]
  std::vector<OutlierSlots> slots[kSides];  // [heads]
  OutlierLists lists;
  int64_t listed = 0;
  TokenCode token;
  OutlierLosses losses;
};

int NuqCodec::SinksOf(int64_t block_begin) const {
  return static_cast<int>(std::clamp<int64_t>(form_.sinks - block_begin, 0, block_));
}

int64_t NuqCodec::ListsOffset(int layer) const {
  return sides_[0].PartBytes(layer, 0) + sides_[1].PartBytes(layer, 0);
}

int64_t NuqCodec::PartOffset(int layer, int head, int side) const {
  return side == 0 ? 0 : sides_[0].PartBytes(layer, head);
}

// The lists' expected size belongs to KV head 0, so that plans come near what grows.
PageBytes NuqCodec::PageSize(int layer, int head) const {
  PageBytes size{sides_[0].PartBytes(layer, head), sides_[1].PartBytes(layer, head)};
  if (!listed_ || head != 0) return size;
  const double expected = (sides_[0].outliers(layer) + sides_[1].outliers(layer)) * block_;
  size.v += OutlierListBytes(block_, static_cast<int64_t>(std::ceil(expected)));
  return size;
}

int64_t NuqCodec::SharedPageBytes(const EncodeArgs& args) const {
  const int64_t planned = PageSize(args.layer, 0).total();
  if (!listed_) return planned;
  const int sinks = SinksOf(args.block_begin);
  const int64_t offset = ListsOffset(args.layer);
  int64_t entries = CountListed(args.pages[0] + offset, block_, sinks, std::max(sinks, args.first));
  TokenCode token;
  for (int t = std::max(0, sinks - args.first); t < args.count; ++t) {
    entries += sides_[0].CountEntries(args.layer, args.k + int64_t{t} * sides_[0].width(), token);
    entries += sides_[1].CountEntries(args.layer, args.v + int64_t{t} * sides_[1].width(), token);
  }
  return std::max(planned, offset + OutlierListBytes(block_, entries));
}

// Finds the places and forgets what an earlier fate of these slots left: tokens from `first` on are new, and sinks never
// have entries.
void NuqCodec::Begin(Job& job) const {
  const EncodeArgs& args = job.args;
  job.sinks = SinksOf(args.block_begin);
  job.first = args.first <= job.sinks ? 0 : args.first;
  for (int side = 0; side < kSides; ++side) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      uint8_t* const part = args.pages[head] + PartOffset(args.layer, head, side);
      OutlierSlots slots{part + sides_[side].SlotsOffset(head),
                         sides_[side].slots(args.layer, head), sides_[side].dim()};
      TruncateSlots(job.first, slots);
      job.parts[side].push_back(part);
      job.slots[side].push_back(slots);
    }
  }
  if (!listed_) return;
  job.lists = {args.pages[0] + ListsOffset(args.layer), block_};
  ClearLists(0, job.first == 0 ? block_ : job.sinks, job.lists);
  ClearLists(job.first, block_, job.lists);
  job.listed = CountListed(job.lists.at, block_, 0, job.first);
}

OutlierLosses NuqCodec::StoreSlots(Job& job, int side, int slot) const {
  OutlierLosses losses;
  const int dim = sides_[side].dim();
  std::vector<OutlierEntry>& entries = job.token.entries;
  size_t at = 0;
  for (int head = 0; head < shape_.kv_heads && at < entries.size(); ++head) {
    const size_t begin = at;
    for (; at < entries.size() && entries[at].channel < (head + 1) * dim; ++at)
      entries[at].channel -= head * dim;
    const OutlierLosses more =
        AddToSlots(slot, {entries.data() + begin, at - begin}, job.slots[side][head]);
    losses.saturated += more.saturated;
    losses.overflow += more.overflow;
  }
  return losses;
}

void NuqCodec::StoreList(Job& job, int side, int slot) const {
  job.listed = AppendList(slot, side == 1, job.token.entries, job.listed, job.lists);
  for (const OutlierEntry& entry : job.token.entries) job.losses.saturated += entry.clamped;
}

void NuqCodec::EncodeToken(Job& job, int slot) const {
  const EncodeArgs& args = job.args;
  for (int side = 0; side < kSides; ++side) {
    const SideCodec& form = sides_[side];
    const float* const row =
        (side == 0 ? args.k : args.v) + int64_t{slot - args.first} * form.width();
    form.EncodeToken(args.layer, row, job.token);
    if (slot < job.sinks) {  // read elsewhere: what has no room here is no loss
      job.token.entries.clear();
      job.token.saturated = 0;
    }
    form.StoreToken(job.token, slot, job.parts[side].data());
    job.losses.saturated += job.token.saturated;
    if (listed_) {
      StoreList(job, side, slot);
    } else {
      const OutlierLosses losses = StoreSlots(job, side, slot);
      job.losses.saturated += losses.saturated;
      job.losses.overflow += losses.overflow;
    }
  }
}

Error NuqCodec::Encode(const EncodeArgs& args) const {
  const int64_t vectors = static_cast<int64_t>(args.count) * shape_.kv_heads;
  if (!AllFinite(args.k, vectors * shape_.dk) || !AllFinite(args.v, vectors * shape_.dv))
    return kNotFinite;
  Job job(args);
  Begin(job);
  for (int t = 0; t < args.count; ++t) EncodeToken(job, args.first + t);
  if (listed_) {  // what is planned but not needed: zeros, whatever was there
    const int64_t used = OutlierListBytes(block_, job.listed);
    const int64_t planned = PageSize(args.layer, 0).total() - ListsOffset(args.layer);
    if (used < planned) std::fill_n(job.lists.at + used, planned - used, uint8_t{0});
  }
  if (args.saturated != nullptr) *args.saturated += job.losses.saturated;
  if (args.overflow != nullptr) *args.overflow += job.losses.overflow;
  return {};
}

// Codes and outliers of one side as they lie in the page.
void NuqCodec::DecodeSide(int layer, int head, int side, const PageView& page, float* tile) const {
  const SideCodec& form = sides_[side];
  const uint8_t* const part = page.packed + PartOffset(layer, head, side);
  const uint8_t* const shared =
      page.shared == nullptr ? nullptr : page.shared + PartOffset(layer, 0, side);
  form.DecodeCodes(layer, head, part, shared, page.tokens, tile);
  if (listed_) {
    const OutlierListReader reader{page.shared + ListsOffset(layer),
                                   block_,
                                   side == 1,
                                   SinksOf(page.begin),
                                   page.tokens,
                                   head,
                                   form.dim()};
    AddLists(reader, form.Order(), tile);
  } else {
    AddSlots(part + form.SlotsOffset(head), form.slots(layer, head), form.dim(), page.tokens,
             form.Order(), tile);
  }
}

// Keys by channel before RoPE of a whole page without anything that is put in between: no outliers, no sinks.
bool NuqCodec::InOnePass(int layer, int head, const PageView& page) const {
  return sides_[0].by_channel() && !angles_.empty() && !listed_ && page.sinks == 0 &&
         page.tokens == block_ && sides_[0].slots(layer, head) == 0;
}

void NuqCodec::DecodeKeys(int layer, int head, const float*, const PageView& page,
                          float* kt) const {
  float base[kMaxDim];  // of at most kMaxDim / 2 planes
  if (!angles_.empty()) RopeAngles(angles_[layer]->table(), page.begin, base);
  if (InOnePass(layer, head, page)) {
    return DecodeNuqKeys(
        {page.packed, form_.bits, sides_[0].Numbers(layer, head), angles_[layer].get(), base, kt});
  }
  if (sides_[0].by_channel()) {
    DecodeSide(layer, head, 0, page, kt);
  } else {
    std::vector<float> rows(static_cast<size_t>(block_) * shape_.dk, 0.0f);
    DecodeSide(layer, head, 0, page, rows.data());
    Transpose(rows.data(), block_, shape_.dk, kt);
  }
  if (page.sinks > 0 || page.tokens < block_) OverlayKeySinks(page, shape_.dk, block_, kt);
  if (!angles_.empty()) angles_[layer]->RotateTile(base, kt);
}

void NuqCodec::DecodeValues(int layer, int head, const float*, const PageView& page,
                            float* v) const {
  if (sides_[1].by_channel()) {
    std::vector<float> columns(static_cast<size_t>(block_) * shape_.dv);
    DecodeSide(layer, head, 1, page, columns.data());
    Transpose(columns.data(), shape_.dv, block_, v);
  } else {
    DecodeSide(layer, head, 1, page, v);
  }
  if (page.sinks > 0 || page.tokens < block_) OverlayValueSinks(page, shape_.dv, block_, v);
}

// Indices of outliers are 16 bits.
std::string CheckIndexRange(const CodecRow& row, const KvShape& shape, const NuqForm& form) {
  if (form.fraction <= 0) return "";
  const int64_t dim = std::max(shape.dk, shape.dv), width = shape.kv_heads * dim;
  const std::string name = std::string("codec ") + row.name;
  if (form.exact && width >= kMaxIndex) {
    return name + ":exact counts at most 65535 channels over all heads, this model has " +
           std::to_string(width);
  }
  if (!form.exact && shape.block_tokens * dim > kMaxIndex) {
    return name + " keeps outliers of blocks of at most 65536 elements, " +
           std::to_string(shape.block_tokens) + " tokens of head size " + std::to_string(dim) +
           " have " + std::to_string(shape.block_tokens * dim);
  }
  return "";
}

}  // namespace

CodecMade MakeNuq(const CodecRow& row, const CodecOptions& options) {
  CodecMade made;
  made.error = CheckOptions(
      row, options, {.min_dim = 16, .max_dim = kMaxDim, .block_multiple = 16, .rope = true});
  if (!made.error.empty()) return made;
  const NuqForm form = ParseNuqForm(row, options, &made.error);
  if (made.error.empty()) made.error = CheckIndexRange(row, options.shape, form);
  if (!made.error.empty()) return made;
  NuqTables tables;
  made.error = LoadNuqTables(row, options, form, &tables);
  if (made.error.empty())
    made.codec = std::make_unique<NuqCodec>(row, options, form, std::move(tables));
  return made;
}

}  // namespace kvring
