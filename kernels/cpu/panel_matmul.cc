// SPDX-License-Identifier: Apache-2.0
// The f32 product: weights in panels of 64 columns, every output one chain of fused multiply-adds over k
// (gemm_tile-inl.h), so that the row law holds by construction and the bits are the same wherever there is such an
// instruction.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/matmul_shape.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/panel_matmul.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// One panel of 64 columns [k][64]; only `columns` of them are written to y.
void PanelProductImpl(const float* x, int64_t rows, int64_t k, const float* panel, int64_t columns,
                      float* y, int64_t ldy) {
  alignas(64) float edge[kTileRows * 64];
  for (int64_t r = 0; r < rows; r += kTileRows) {
    const int n = static_cast<int>(std::min<int64_t>(kTileRows, rows - r));
    TileOperands t{x + r * k, k, panel, 64, k, y + r * ldy, ldy, nullptr};
    if (columns == 64) {
      GemmRows(n, t, 64);
      continue;
    }
    t.c = edge;
    t.ldc = 64;
    GemmRows(n, t, columns);
    for (int i = 0; i < n; ++i) std::copy_n(edge + i * 64, columns, y + (r + i) * ldy);
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(PanelProductImpl);

class PanelShape : public MatmulShape {
 public:
  explicit PanelShape(const MatmulKey& key) : key_(key), panels_((key.n + 63) / 64) {}
  int64_t packed_bytes() const override {
    return panels_ * key_.k * 64 * static_cast<int64_t>(sizeof(float));
  }

  bool Pack(const void* w, uint8_t* packed) const override {
    const auto* from = static_cast<const float*>(w);
    auto* to = reinterpret_cast<float*>(packed);
    std::memset(packed, 0, static_cast<size_t>(packed_bytes()));
    for (int64_t o = 0; o < key_.n; ++o) {
      for (int64_t i = 0; i < key_.k; ++i)
        to[(o / 64 * key_.k + i) * 64 + o % 64] = from[o * key_.k + i];
    }
    return true;
  }

  bool Run(const void* x, int64_t rows, const uint8_t* packed, void* y) const override {
    const auto* w = reinterpret_cast<const float*>(packed);
    for (int64_t p = 0; p < panels_; ++p) {
      HWY_DYNAMIC_DISPATCH(PanelProductImpl)
      (static_cast<const float*>(x), rows, key_.k, w + p * key_.k * 64,
       std::min<int64_t>(64, key_.n - p * 64), static_cast<float*>(y) + p * 64, key_.n);
    }
    return true;
  }

 private:
  MatmulKey key_;
  int64_t panels_;
};

}  // namespace

std::shared_ptr<const MatmulShape> MakePanelShape(const MatmulKey& key) {
  return key.math == LinearMath::kF32 ? std::make_shared<PanelShape>(key) : nullptr;
}

}  // namespace kvring
#endif
