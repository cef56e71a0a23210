// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/hadamard.h"

#include <algorithm>
#include <bit>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/hadamard.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class V>
HWY_INLINE void Butterfly(V& a, V& b) {
  const V difference = hn::Sub(a, b);
  a = hn::Add(a, b);
  b = difference;
}

// Three stages at once (strides h, 2h, 4h): rows stay in registers between them.
template <class D>
HWY_INLINE void Radix8(D d, float* x, int64_t step, hn::Vec<D> norm) {
  auto a0 = hn::LoadU(d, x), a1 = hn::LoadU(d, x + step), a2 = hn::LoadU(d, x + 2 * step);
  auto a3 = hn::LoadU(d, x + 3 * step), a4 = hn::LoadU(d, x + 4 * step);
  auto a5 = hn::LoadU(d, x + 5 * step), a6 = hn::LoadU(d, x + 6 * step);
  auto a7 = hn::LoadU(d, x + 7 * step);
  Butterfly(a0, a1), Butterfly(a2, a3), Butterfly(a4, a5), Butterfly(a6, a7);
  Butterfly(a0, a2), Butterfly(a1, a3), Butterfly(a4, a6), Butterfly(a5, a7);
  Butterfly(a0, a4), Butterfly(a1, a5), Butterfly(a2, a6), Butterfly(a3, a7);
  hn::StoreU(hn::Mul(a0, norm), d, x), hn::StoreU(hn::Mul(a1, norm), d, x + step);
  hn::StoreU(hn::Mul(a2, norm), d, x + 2 * step), hn::StoreU(hn::Mul(a3, norm), d, x + 3 * step);
  hn::StoreU(hn::Mul(a4, norm), d, x + 4 * step), hn::StoreU(hn::Mul(a5, norm), d, x + 5 * step);
  hn::StoreU(hn::Mul(a6, norm), d, x + 6 * step), hn::StoreU(hn::Mul(a7, norm), d, x + 7 * step);
}

template <class D>
HWY_INLINE void Radix2(D d, float* x, int64_t step, hn::Vec<D> norm) {
  auto a = hn::LoadU(d, x), b = hn::LoadU(d, x + step);
  Butterfly(a, b);
  hn::StoreU(hn::Mul(a, norm), d, x), hn::StoreU(hn::Mul(b, norm), d, x + step);
}

// One Hadamard matrix over `size` rows of `lanes` columns.
void HadamardColumns(float* tile, int64_t size, int64_t lanes, float norm) {
  const hn::CappedTag<float, kLanes> d;
  const int64_t width = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t lane = 0; lane < lanes; lane += width) {
    float* const strip = tile + lane;
    for (int64_t h = 1; h < size;) {
      const int64_t radix = h * 8 <= size ? 8 : 2;
      const auto scale = hn::Set(d, h * radix == size ? norm : 1.0f);
      for (int64_t i = 0; i < size; i += h * radix) {
        for (int64_t j = i; j < i + h; ++j) {
          if (radix == 8) {
            Radix8(d, strip + j * lanes, h * lanes, scale);
          } else {
            Radix2(d, strip + j * lanes, h * lanes, scale);
          }
        }
      }
      h *= radix;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(HadamardColumns);

uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr int kMaxDim = 512;

// Rows in groups of kLanes, each a column of a small tile.
template <class Transform>
void ByColumns(const float* x, int64_t rows, int dim, const float* pre, const float* post, float* y,
               Transform transform) {
  alignas(64) float tile[kMaxDim * kLanes];
  for (int64_t first = 0; first < rows; first += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, rows - first);
    if (count < kLanes) std::fill_n(tile, dim * kLanes, 0.0f);
    for (int64_t r = 0; r < count; ++r) {
      const float* const row = x + (first + r) * dim;
      for (int i = 0; i < dim; ++i)
        tile[i * kLanes + r] = pre == nullptr ? row[i] : row[i] * pre[i];
    }
    transform(tile);
    for (int64_t r = 0; r < count; ++r) {
      float* const row = y + (first + r) * dim;
      for (int i = 0; i < dim; ++i) {
        const float value = tile[i * kLanes + r];
        row[i] = post == nullptr ? value : value * post[i];
      }
    }
  }
}

}  // namespace

Hadamard::Hadamard(int dim) : dim_(dim), signs_(dim) {
  for (int i = 0; i < dim; ++i) signs_[i] = SplitMix64(kSignSeed + i) >> 63 ? -1.0f : 1.0f;
  const int factor = dim & -dim;
  const auto norm = [](int size) { return static_cast<float>(1.0 / std::sqrt(double(size))); };
  if (factor >= 16 || factor == dim) {
    for (int i = 0; i < dim; i += factor) blocks_.push_back({i, factor, norm(factor)});
  } else {
    const int size = static_cast<int>(std::bit_floor(static_cast<unsigned>(dim)));
    blocks_ = {{0, size, norm(size)}, {dim - size, size, norm(size)}};
  }
}

void Hadamard::Columns(float* tile, int64_t lanes) const {
  for (const Block& b : blocks_) {
    HWY_DYNAMIC_DISPATCH(HadamardColumns)(tile + b.begin * lanes, b.size, lanes, b.norm);
  }
}

void Hadamard::ColumnsInverse(float* tile, int64_t lanes) const {
  // Each block is symmetric and its own inverse; only the order turns round.
  for (auto b = blocks_.rbegin(); b != blocks_.rend(); ++b) {
    HWY_DYNAMIC_DISPATCH(HadamardColumns)(tile + b->begin * lanes, b->size, lanes, b->norm);
  }
}

void Hadamard::Rows(const float* x, int64_t rows, const float* pre, float* y) const {
  ByColumns(x, rows, dim_, pre, nullptr, y, [this](float* tile) { Columns(tile, kLanes); });
}

void Hadamard::RowsInverse(const float* x, int64_t rows, const float* post, float* y) const {
  ByColumns(x, rows, dim_, nullptr, post, y, [this](float* tile) { ColumnsInverse(tile, kLanes); });
}

}  // namespace kvring
#endif  // HWY_ONCE
