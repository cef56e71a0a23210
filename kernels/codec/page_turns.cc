// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/page_turns.h"

#include <algorithm>
#include <cmath>

#include "kernels/sincos.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/page_turns.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef KVRING_PAGE_TURNS_ONCE
#define KVRING_PAGE_TURNS_ONCE
namespace kvring {
// Of a page: entries of the digits' tables.
struct TurnDigits {
  const float* entry[3];
};
}  // namespace kvring
#endif

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// turn = a * b as complex numbers, [2][stride] each. Products and sums are kept apart: the same bits everywhere.
HWY_INLINE void Multiply(const float* a, const float* b, int64_t stride, float* turn) {
  const hn::CappedTag<float, 16> d;
  for (int64_t p = 0; p < stride; p += static_cast<int64_t>(hn::Lanes(d))) {
    const auto ac = hn::LoadU(d, a + p), as = hn::LoadU(d, a + stride + p);
    const auto bc = hn::LoadU(d, b + p), bs = hn::LoadU(d, b + stride + p);
    hn::StoreU(hn::Sub(hn::Mul(ac, bc), hn::Mul(as, bs)), d, turn + p);
    hn::StoreU(hn::Add(hn::Mul(as, bc), hn::Mul(ac, bs)), d, turn + stride + p);
  }
}

// Products of the digits of n pages; a last digit of 0 (null) changes no number.
void MultiplyDigits(const TurnDigits* digits, int64_t n, int64_t stride, float* turn) {
  for (int64_t i = 0; i < n; ++i, turn += 2 * stride) {
    Multiply(digits[i].entry[0], digits[i].entry[1], stride, turn);
    if (digits[i].entry[2] != nullptr) Multiply(turn, digits[i].entry[2], stride, turn);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(MultiplyDigits);

namespace {

constexpr double kTableOne = 32767.0;

// Aligned to registers: a load across two cache lines takes twice the time.
template <class T>
hwy::AlignedFreeUniquePtr<T[]> MakeZeros(size_t n) {
  auto made = hwy::AllocateAligned<T>(n);
  std::fill_n(made.get(), n, T{0});
  return made;
}

double LastOffset(int block) { return 0.5 * (block - 1); }

// The first register of planes whose powers are exact enough: (w e)^4 / 24 of a unit, and with it (w e)^5 / 120.
int FirstFolded(const std::vector<double>& inv_freq, int stride, int block) {
  int first = stride;
  while (first > 0) {
    double angle = 0;
    for (size_t p = first - 16; p < std::min<size_t>(first, inv_freq.size()); ++p)
      angle = std::max(angle, std::fabs(inv_freq[p]) * LastOffset(block));
    if (std::pow(angle, 4) / 24 * kTableOne > 0.5) break;
    first -= 16;
  }
  return first;
}

}  // namespace

PageTurns::PageTurns(const RopeTable& table, int block_tokens)
    : inv_freq_(table.inv_freq),
      block_(block_tokens),
      planes_(table.planes()),
      stride_((planes_ + 15) / 16 * 16),
      folded_(FirstFolded(inv_freq_, stride_, block_)) {
  FillDigits();
  FillOffsets();
  FillFold();
}

void PageTurns::FillDigits() {
  int64_t unit = block_;  // positions that one step of the digit stands for
  for (int i = 0; i < kDigits; ++i) {
    digit_[i] = MakeZeros<float>(static_cast<size_t>(2 * stride_) << kBits[i]);
    for (int64_t n = 0; n < int64_t{1} << kBits[i]; ++n) {
      float* const entry = digit_[i].get() + n * 2 * stride_;
      for (int p = 0; p < planes_; ++p) {
        const double middle = i == 0 ? LastOffset(block_) : 0.0;
        const SinCosResult angle = SinCos((static_cast<double>(n * unit) + middle) * inv_freq_[p]);
        entry[p] = static_cast<float>(angle.cos);
        entry[stride_ + p] = static_cast<float>(angle.sin);
      }
    }
    unit <<= kBits[i];
  }
}

void PageTurns::FillOffsets() {
  offsets_ = MakeZeros<int16_t>(static_cast<size_t>(functions()) * block_);
  const auto put = [this](int function, int k, double even, double odd) {
    offsets_[At(function, k)] = static_cast<int16_t>(std::lround(even * kTableOne));
    offsets_[At(function, k) + block_] = static_cast<int16_t>(std::lround(odd * kTableOne));
  };
  for (int k = 0; k < block_ / 2; ++k) {
    for (int p = 0; p < std::min(folded_, planes_); ++p) {
      const SinCosResult angle = SinCos((k + 0.5) * inv_freq_[p]);
      put(p, k, angle.cos, angle.sin);
    }
    if (folded_ == stride_) continue;
    const double x = (k + 0.5) / LastOffset(block_);
    put(folded_, k, 1.0, x);
    put(folded_ + 1, k, x * x, x * x * x);
  }
}

void PageTurns::FillFold() {
  const int count = stride_ - folded_;
  fold_ = MakeZeros<float>(static_cast<size_t>(4) * count + 16);
  for (int p = folded_; p < planes_; ++p) {
    const double angle = inv_freq_[p] * LastOffset(block_);
    float* const at = fold_.get() + (p - folded_);
    at[0] = 1.0f;
    at[count] = static_cast<float>(-angle * angle / 2);
    at[2 * count] = static_cast<float>(angle);
    at[3 * count] = static_cast<float>(-angle * angle * angle / 6);
  }
}

int64_t PageTurns::Turn(std::span<const int64_t> begins, float* turn) const {
  constexpr int64_t kAtOnce = 16;
  TurnDigits digits[kAtOnce];
  int64_t done = 0, count = 0;
  const auto multiply = [&] {
    HWY_DYNAMIC_DISPATCH(MultiplyDigits)(digits, count, stride_, turn + done * 2 * stride_);
    done += count;
    count = 0;
  };
  for (const int64_t begin : begins) {
    if (!Covers(begin)) break;
    int64_t page = begin / block_;
    for (int i = 0; i < kDigits; ++i) {
      digits[count].entry[i] =
          digit_[i].get() + (page & ((int64_t{1} << kBits[i]) - 1)) * 2 * stride_;
      page >>= kBits[i];
    }
    // Below a million tokens, a product with 1.
    if (digits[count].entry[2] == digit_[2].get()) digits[count].entry[2] = nullptr;
    if (++count == kAtOnce) multiply();
  }
  multiply();
  return done;
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
