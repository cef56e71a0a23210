// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/page_angles.h"

#include <algorithm>

#include "kernels/sincos.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/page_angles.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/turn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// cos, sin: [planes][block], of the offsets.
void RotatePage(const RopeTable& table, const float* base, const float* cos, const float* sin,
                int64_t block, float* tile) {
  const TurnD d;
  for (int p = 0; p < table.planes(); ++p, cos += block, sin += block) {
    const auto bc = hn::Set(d, base[2 * p]), bs = hn::Set(d, base[2 * p + 1]);
    float* const a = tile + table.First(p) * block;
    float* const b = tile + table.Second(p) * block;
#pragma GCC unroll 4
    for (int64_t t = 0; t < block; t += static_cast<int64_t>(hn::Lanes(d)))
      Turn(bc, bs, cos + t, sin + t).Store(LoadOnce(a + t), LoadOnce(b + t), a + t, b + t);
  }
}

// a, b = (re, im of z turned by each offset), times their factors.
void SpreadPlane(const float* cos, const float* sin, const float* z, float pre_a, float pre_b,
                 int64_t count, float* a, float* b) {
  const hn::CappedTag<float, 16> d;
  const auto re = hn::Set(d, z[0]), im = hn::Set(d, z[1]);
  const auto pa = hn::Set(d, pre_a), pb = hn::Set(d, pre_b);
  for (int64_t t = 0; t < count; t += static_cast<int64_t>(hn::Lanes(d))) {
    const auto c = hn::LoadU(d, cos + t), s = hn::LoadU(d, sin + t);
    hn::StoreU(hn::Mul(hn::Sub(hn::Mul(re, c), hn::Mul(im, s)), pa), d, a + t);
    hn::StoreU(hn::Mul(hn::Add(hn::Mul(re, s), hn::Mul(im, c)), pb), d, b + t);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(RotatePage);
HWY_EXPORT(SpreadPlane);

// x's plane turned to the page's first position: everything after is an offset.
void TurnToBase(const float* base, int plane, float x, float y, float* z) {
  const float c = base[2 * plane], s = base[2 * plane + 1];
  z[0] = x * c - y * s;
  z[1] = x * s + y * c;
}

}  // namespace

PageAngles::PageAngles(const RopeTable& table, int block_tokens)
    : table_(&table),
      block_(block_tokens),
      cos_(hwy::AllocateAligned<float>(static_cast<size_t>(table.planes()) * block_tokens)),
      sin_(hwy::AllocateAligned<float>(static_cast<size_t>(table.planes()) * block_tokens)) {
  for (int p = 0; p < table.planes(); ++p) {
    for (int t = 0; t < block_; ++t) {
      const SinCosResult angle = SinCos(t * table.inv_freq[p]);  // the base carries attention_scale
      cos_[p * block_ + t] = static_cast<float>(angle.cos);
      sin_[p * block_ + t] = static_cast<float>(angle.sin);
    }
  }
}

void PageAngles::RotateTile(const float* base, float* tile) const {
  HWY_DYNAMIC_DISPATCH(RotatePage)(*table_, base, cos_.get(), sin_.get(), block_, tile);
}

void PageAngles::SpreadTile(const float* base, const float* x, const float* pre, int tokens,
                            float* tile) const {
  const RopeTable& table = *table_;
  for (int p = 0; p < table.planes(); ++p) {
    const int a = table.First(p), b = table.Second(p);
    float z[2];
    TurnToBase(base, p, x[a], x[b], z);
    HWY_DYNAMIC_DISPATCH(SpreadPlane)
    (&cos_[p * block_], &sin_[p * block_], z, pre[a], pre[b], block_, tile + a * block_,
     tile + b * block_);
  }
  for (int i = 2 * table.planes(); i < table.head_dim; ++i) {
    std::fill_n(tile + i * block_, block_, x[i] * pre[i]);
  }
  if (tokens == block_) return;
  for (int i = 0; i < table.head_dim; ++i) {
    std::fill(tile + i * block_ + tokens, tile + (i + 1) * block_, 0.0f);
  }
}

void PageAngles::RotateAt(const float* base, int offset, const float* x, float* y) const {
  const RopeTable& table = *table_;
  for (int p = 0; p < table.planes(); ++p) {
    const int a = table.First(p), b = table.Second(p);
    float z[2];
    TurnToBase(base, p, x[a], x[b], z);
    const float c = cos_[p * block_ + offset], s = sin_[p * block_ + offset];
    y[a] = z[0] * c - z[1] * s;
    y[b] = z[0] * s + z[1] * c;
  }
  std::copy(x + 2 * table.planes(), x + table.head_dim, y + 2 * table.planes());
}

std::vector<std::shared_ptr<const PageAngles>> MakePageAngles(
    const std::vector<const RopeTable*>& rope, int block_tokens) {
  std::vector<std::shared_ptr<const PageAngles>> all;
  for (const RopeTable* table : rope) {
    const auto same = std::find_if(all.begin(), all.end(), [table](const auto& made) {
      const RopeTable& other = made->table();
      return &other == table ||
             (other.pairing == table->pairing && other.head_dim == table->head_dim &&
              other.attention_scale == table->attention_scale && other.inv_freq == table->inv_freq);
    });
    all.push_back(same != all.end() ? *same : std::make_shared<PageAngles>(*table, block_tokens));
  }
  return all;
}

}  // namespace kvring
#endif  // HWY_ONCE
