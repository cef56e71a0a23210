// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/page_turns.h"

#include <algorithm>
#include <cmath>

#include "kernels/sincos.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/page_turns.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// turn = a * b as complex numbers, [2][stride] each. Products and sums are kept apart: the same bits everywhere.
void MultiplyTurns(const float* a, const float* b, int64_t stride, float* turn) {
  const hn::CappedTag<float, 16> d;
  for (int64_t p = 0; p < stride; p += static_cast<int64_t>(hn::Lanes(d))) {
    const auto ac = hn::LoadU(d, a + p), as = hn::LoadU(d, a + stride + p);
    const auto bc = hn::LoadU(d, b + p), bs = hn::LoadU(d, b + stride + p);
    hn::StoreU(hn::Sub(hn::Mul(ac, bc), hn::Mul(as, bs)), d, turn + p);
    hn::StoreU(hn::Add(hn::Mul(as, bc), hn::Mul(ac, bs)), d, turn + stride + p);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(MultiplyTurns);

namespace {

// Aligned to registers: a load across two cache lines takes twice the time.
template <class T>
hwy::AlignedFreeUniquePtr<T[]> MakeZeros(size_t n) {
  auto made = hwy::AllocateAligned<T>(n);
  std::fill_n(made.get(), n, T{0});
  return made;
}

}  // namespace

PageTurns::PageTurns(const RopeTable& table, int block_tokens)
    : inv_freq_(table.inv_freq),
      block_(block_tokens),
      planes_(table.planes()),
      stride_((planes_ + 15) / 16 * 16) {
  int64_t unit = block_;  // positions that one step of the digit stands for
  for (int i = 0; i < kDigits; ++i) {
    digit_[i] = MakeZeros<float>(static_cast<size_t>(2 * stride_) << kBits[i]);
    for (int64_t n = 0; n < int64_t{1} << kBits[i]; ++n) {
      float* const entry = digit_[i].get() + n * 2 * stride_;
      for (int p = 0; p < planes_; ++p) {
        const double middle = i == 0 ? 0.5 * (block_ - 1) : 0.0;
        const SinCosResult angle = SinCos((static_cast<double>(n * unit) + middle) * inv_freq_[p]);
        entry[p] = static_cast<float>(angle.cos);
        entry[stride_ + p] = static_cast<float>(angle.sin);
      }
    }
    unit <<= kBits[i];
  }
  offsets_ = MakeZeros<int16_t>(static_cast<size_t>(stride_) * block_);
  for (int p = 0; p < planes_; ++p) {
    for (int k = 0; k < block_ / 2; ++k) {
      const SinCosResult angle = SinCos((k + 0.5) * inv_freq_[p]);
      offsets_[At(p, k)] = static_cast<int16_t>(std::lround(angle.cos * 32767.0));
      offsets_[At(p, k) + block_] = static_cast<int16_t>(std::lround(angle.sin * 32767.0));
    }
  }
}

bool PageTurns::Turn(int64_t begin, float* turn) const {
  int64_t page = begin / block_;
  const float* entry[kDigits];
  for (int i = 0; i < kDigits; ++i) {
    entry[i] = digit_[i].get() + (page & ((int64_t{1} << kBits[i]) - 1)) * 2 * stride_;
    page >>= kBits[i];
  }
  if (page != 0) return false;
  // The last digit is 0 below a million tokens, and a product with 1 changes no number.
  HWY_DYNAMIC_DISPATCH(MultiplyTurns)(entry[0], entry[1], stride_, turn);
  if (entry[2] != digit_[2].get())
    HWY_DYNAMIC_DISPATCH(MultiplyTurns)(turn, entry[2], stride_, turn);
  return true;
}

std::vector<std::shared_ptr<const PageTurns>> MakePageTurns(
    const std::vector<const RopeTable*>& rope, int block_tokens) {
  std::vector<std::shared_ptr<const PageTurns>> all;
  for (const RopeTable* table : rope) {
    const auto same = std::find_if(all.begin(), all.end(), [table](const auto& made) {
      return made->inv_freq() == table->inv_freq;
    });
    all.push_back(same != all.end() ? *same : std::make_shared<PageTurns>(*table, block_tokens));
  }
  return all;
}

}  // namespace kvring
#endif  // HWY_ONCE
