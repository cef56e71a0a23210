// SPDX-License-Identifier: Apache-2.0
// f32: rows as they are, keys after RoPE. For comparison with programs that keep the cache in fp32.
//
// Page, B slots: K part float [dk][B] (a coefficient's slots side by side, as tiles are), V part float [B][dv].
#include <algorithm>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/codec/codec_util.h"
#include "kernels/cpu/attend_tile.h"

namespace kvring {
namespace {

class F32Codec final : public Codec {
 public:
  F32Codec(const CodecRow& row, const CodecOptions& options)
      : shape_(options.shape), block_(shape_.block_tokens) {
    traits_.id = CanonicalId(row, options);
    traits_.lossless = true;
    traits_.dk = shape_.dk;
    traits_.dv = shape_.dv;
  }

  const CodecTraits& traits() const override { return traits_; }
  PageBytes PageSize(int, int) const override {
    return {4LL * shape_.dk * block_, 4LL * shape_.dv * block_};
  }

  Error Encode(const EncodeArgs& args) const override {
    const int64_t vectors = static_cast<int64_t>(args.count) * shape_.kv_heads;
    if (!AllFinite(args.k, vectors * shape_.dk) || !AllFinite(args.v, vectors * shape_.dv))
      return kNotFinite;
    for (int64_t i = 0; i < vectors; ++i) {
      const int64_t slot = args.first + i / shape_.kv_heads;
      float* const k = reinterpret_cast<float*>(args.pages[i % shape_.kv_heads]);
      StoreColumn(args.k + i * shape_.dk, shape_.dk, slot, block_, k);
      std::copy_n(args.v + i * shape_.dv, shape_.dv, k + shape_.dk * block_ + slot * shape_.dv);
    }
    return {};
  }

  // A page is a tile, but that unused slots hold anything.
  int64_t AttendPacked(const AttendArgs& args, std::span<const PageView> pages, int64_t first,
                       int64_t last, AttendScratch& scratch,
                       const SoftmaxPartial& partial) const override {
    const PageView& page = pages.front();
    if (shape_.dv % 16 != 0) return 0;
    AttendTileArgs tile = TileOf(args, page, args.raw_q, first, last, partial);
    tile.kt = reinterpret_cast<const float*>(page.packed);
    tile.v = tile.kt + shape_.dk * block_;
    tile.k_ahead = tile.v_ahead = BytesAhead(args, page);
    AttendTile(tile, scratch);
    return 1;
  }

  void DecodeKeys(int, int, const float*, const PageView& page, float* kt) const override {
    const float* const k = reinterpret_cast<const float*>(page.packed);
    for (int64_t i = 0; i < shape_.dk; ++i) {
      std::copy_n(k + i * block_, page.tokens, kt + i * block_);
      std::fill(kt + i * block_ + page.tokens, kt + (i + 1) * block_, 0.0f);
    }
  }

  void DecodeValues(int, int, const float*, const PageView& page, float* v) const override {
    std::copy_n(reinterpret_cast<const float*>(page.packed) + shape_.dk * block_,
                page.tokens * shape_.dv, v);
    std::fill(v + page.tokens * shape_.dv, v + block_ * shape_.dv, 0.0f);
  }

 private:
  KvShape shape_;
  int64_t block_;
  CodecTraits traits_;
};

}  // namespace

CodecMade MakeF32(const CodecRow& row, const CodecOptions& options) {
  CodecMade made;
  made.error = CheckOptions(row, options, {.max_dim = 4096, .block_multiple = 16});
  if (made.error.empty()) made.codec = std::make_unique<F32Codec>(row, options);
  return made;
}

}  // namespace kvring
