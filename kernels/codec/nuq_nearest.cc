// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/nuq_nearest.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/nuq_nearest.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void NearestCodesTarget(const float* x, const float* z, const float* s, int64_t n,
                        const float* centroids, int count, uint8_t* codes) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const int64_t width = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += width) {
    const int64_t at = std::min(i, n - width);  // the last vector overlaps: the same is written
    const auto xv = hn::LoadU(d, x + at), zv = hn::LoadU(d, z + at), sv = hn::LoadU(d, s + at);
    const auto distance = [&](int j) HWY_ATTR {
      return hn::Abs(hn::Sub(xv, hn::Add(zv, hn::Mul(sv, hn::Set(d, centroids[j])))));
    };
    auto best = distance(0);
    auto code = hn::Zero(di);
    for (int j = 1; j < count; ++j) {
      const auto other = distance(j);
      code = hn::IfThenElse(hn::RebindMask(di, hn::Lt(other, best)), hn::Set(di, j), code);
      best = hn::Min(best, other);
    }
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + at);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {
HWY_EXPORT(NearestCodesTarget);
}  // namespace

void NearestCodes(const float* x, const float* z, const float* s, int64_t n, const float* centroids,
                  int count, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(NearestCodesTarget)(x, z, s, n, centroids, count, codes);
}

}  // namespace kvring
#endif  // HWY_ONCE
