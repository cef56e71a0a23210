// SPDX-License-Identifier: Apache-2.0
// f16: rows as IEEE binary16, keys after RoPE. What other codecs are measured against; nothing beside the page.
//
// Page, B slots: K part Half [dk][B] (a coefficient's slots side by side, as tiles are), V part Half [B][dv].
#include <algorithm>

#include "kernels/attention.h"
#include "kernels/codec/codec_util.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/exact_tile.h"

namespace kvring {
namespace {

class F16Codec final : public Codec {
 public:
  F16Codec(const CodecRow& row, const CodecOptions& options)
      : shape_(options.shape), block_(shape_.block_tokens) {
    traits_.id = CanonicalId(row, options);
    traits_.lossless = true;
    traits_.dk = shape_.dk;
    traits_.dv = shape_.dv;
  }

  const CodecTraits& traits() const override { return traits_; }
  PageBytes PageSize(int, int) const override {
    return {2LL * shape_.dk * block_, 2LL * shape_.dv * block_};
  }

  Error Encode(const EncodeArgs& args) const override {
    const int64_t vectors = static_cast<int64_t>(args.count) * shape_.kv_heads;
    if (!AllFinite(args.k, vectors * shape_.dk) || !AllFinite(args.v, vectors * shape_.dv))
      return kNotFinite;
    for (int64_t i = 0; i < vectors; ++i) {
      const int64_t slot = args.first + i / shape_.kv_heads;
      Half* const k = reinterpret_cast<Half*>(args.pages[i % shape_.kv_heads]);
      Store(args.k + i * shape_.dk, shape_.dk, block_, k + slot, args.saturated);
      Store(args.v + i * shape_.dv, shape_.dv, 1, k + (shape_.dk * block_ + slot * shape_.dv),
            args.saturated);
    }
    return {};
  }

  // The same steps as over a tile, on numbers that are widened in registers.
  int64_t AttendPacked(const AttendArgs& args, std::span<const PageView> pages, int64_t first,
                       int64_t last, AttendScratch& scratch,
                       const SoftmaxPartial& partial) const override {
    const PageView& page = pages.front();
    if (last - first > kDirectRows || shape_.dv % 16 != 0) return 0;
    AttendTileArgs tile = TileOf(args, page, args.raw_q, first, last, partial);
    tile.half_kt = reinterpret_cast<const Half*>(page.packed);
    tile.half_v = tile.half_kt + shape_.dk * block_;
    tile.k_ahead = tile.v_ahead = BytesAhead(args, page);
    AttendTile(tile, scratch);
    return 1;
  }

  void DecodeKeys(int, int, const float*, const PageView& page, float* kt) const override {
    const Half* const k = reinterpret_cast<const Half*>(page.packed);
    if (page.tokens == block_) return WidenHalves(k, shape_.dk * block_, kt);
    for (int64_t i = 0; i < shape_.dk; ++i) {
      WidenHalves(k + i * block_, page.tokens, kt + i * block_);
      std::fill(kt + i * block_ + page.tokens, kt + (i + 1) * block_, 0.0f);
    }
  }

  void DecodeValues(int, int, const float*, const PageView& page, float* v) const override {
    const Half* const from = reinterpret_cast<const Half*>(page.packed) + shape_.dk * block_;
    WidenHalves(from, page.tokens * shape_.dv, v);
    std::fill(v + page.tokens * shape_.dv, v + block_ * shape_.dv, 0.0f);
  }

 private:
  static void Store(const float* x, int64_t n, int64_t stride, Half* to, int64_t* saturated) {
    for (int64_t i = 0; i < n; ++i) {
      to[i * stride] = FloatToHalfSaturated(x[i]);
      if (saturated != nullptr && (x[i] > 65504.0f || x[i] < -65504.0f)) ++*saturated;
    }
  }

  KvShape shape_;
  int64_t block_;
  CodecTraits traits_;
};

}  // namespace

CodecMade MakeF16(const CodecRow& row, const CodecOptions& options) {
  CodecMade made;
  made.error = CheckOptions(row, options, {.max_dim = 4096, .block_multiple = 16});
  if (made.error.empty()) made.codec = std::make_unique<F16Codec>(row, options);
  return made;
}

}  // namespace kvring
