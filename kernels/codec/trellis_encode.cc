// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/trellis_encode.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "kernels/codec/lloyd_max.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/trellis_encode.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef KVRING_CODEC_TRELLIS_ENCODE_ONCE
#define KVRING_CODEC_TRELLIS_ENCODE_ONCE
namespace kvring {

// One coefficient of the search. Before it a path is known by the bits of its window that stay, 2^(7 - bits) states; after it by
// those that the next one's window keeps. The last coefficient's next takes all seven bits: one state, the end.
struct TrellisStep {
  int bits = 0, next_bits = 0;
  const float* number = nullptr;  // [128] of the width's table
  float root = 0.0f;              // square root of the weight
};

}  // namespace kvring
#endif

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kLanes>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;

// from: [states before][kLanes] least errors, to: [states after][kLanes]. target: [kLanes] coefficients over the gain, times the
// root. back: [states after][kLanes] the bits that leave the window on the best way to a state (of equals the lowest number).
template <bool kBack>
HWY_INLINE void Advance(const TrellisStep& step, const float* target, const float* from, float* to,
                        uint8_t* back) {
  const DF d;
  const hn::Rebind<uint8_t, DI> d8;
  alignas(64) float number[kTrellisEntries];
  for (int w = 0; w < kTrellisEntries; ++w) number[w] = step.root * step.number[w];
  const int kept = (1 << (kTrellisWindow - step.bits)) - 1;
  const int states = 1 << (kTrellisWindow - step.next_bits), ways = 1 << step.next_bits;
  for (int64_t l = 0; l < kLanes; l += static_cast<int64_t>(hn::Lanes(d))) {
    const VF u = hn::LoadU(d, target + l);
    const auto error = [&](int w) HWY_ATTR {
      const VF rest = hn::Sub(u, hn::Set(d, number[w]));
      return hn::Add(hn::Load(d, from + (w & kept) * kLanes + l), hn::Mul(rest, rest));
    };
    for (int s = 0; s < states; ++s) {
      VF best = error(s << step.next_bits), way = hn::Zero(d);
      for (int j = 1; j < ways; ++j) {
        const VF other = error(s << step.next_bits | j);
        if constexpr (kBack)
          way = hn::IfThenElse(hn::Lt(other, best), hn::Set(d, static_cast<float>(j)), way);
        best = hn::Min(best, other);
      }
      hn::Store(best, d, to + s * kLanes + l);
      if constexpr (kBack)
        hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(DI(), way)), d8, back + s * kLanes + l);
    }
  }
}

void TrellisAdvance(const TrellisStep& step, const float* target, const float* from, float* to,
                    uint8_t* back) {
  if (back == nullptr) return Advance<false>(step, target, from, to, back);
  Advance<true>(step, target, from, to, back);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(TrellisAdvance);

constexpr int kMostStates = 1 << (kTrellisWindow - 1);
constexpr int kGainSteps[] = {0, -1, 1, -2, 2};
constexpr int kGains = 5;

// The coefficients of a group that have bits.
struct Path {
  int count = 0;
  int row[kTrellisMaxRows];
  TrellisStep step[kTrellisMaxRows];
  int64_t back_bytes = 0;  // of all steps
};

void MakePath(const TrellisGroup& group, Path& path) {
  for (int i = 0; i < group.rows; ++i) {
    if (group.bits[i] == 0) continue;
    path.row[path.count] = i;
    TrellisStep& step = path.step[path.count++];
    step.bits = group.bits[i];
    step.number = TrellisTables()[group.bits[i]].number.data();
    step.root = std::sqrt(group.weight[i]);
  }
  for (int n = 0; n < path.count; ++n) {
    const int next = n + 1 < path.count ? path.step[n + 1].bits : kTrellisWindow;
    path.step[n].next_bits = next;
    path.back_bytes += int64_t{kLanes} << (kTrellisWindow - next);
  }
}

// What the lanes of one search hold: a vector each, and the byte of the gain it is tried at.
struct Trial {
  int count = 0;
  uint8_t vector[kLanes] = {}, e[kLanes] = {};
};

// error: [kLanes] weighted squared errors in units of z. back: as Advance writes it, step after step, or null.
void Search(const Path& path, const float* z, const Trial& trial, float* error, uint8_t* back) {
  alignas(64) float states[2][kMostStates * kLanes];
  float inverse[kLanes] = {}, target[kLanes] = {};
  std::fill_n(states[0], kMostStates * kLanes, HUGE_VALF);
  std::fill_n(states[0], kLanes, 0.0f);  // bits before the first are zeros
  for (int l = 0; l < trial.count; ++l) inverse[l] = 1.0f / ScaleValue(trial.e[l]);
  for (int n = 0; n < path.count; ++n) {
    const TrellisStep& step = path.step[n];
    const float* const row = z + path.row[n] * kLanes;
    for (int l = 0; l < trial.count; ++l) target[l] = row[trial.vector[l]] * inverse[l] * step.root;
    HWY_DYNAMIC_DISPATCH(TrellisAdvance)(step, target, states[n % 2], states[(n + 1) % 2], back);
    if (back != nullptr) back += int64_t{kLanes} << (kTrellisWindow - step.next_bits);
  }
  for (int l = 0; l < trial.count; ++l) {
    const float gain = ScaleValue(trial.e[l]);
    error[l] = states[path.count % 2][l] * gain * gain;
  }
}

// The codes of one lane, from the end of what Search noted to its beginning.
void TraceBack(const Path& path, const uint8_t* back, int lane, int vector, uint8_t* codes) {
  back += path.back_bytes;
  int state = 0;
  for (int n = path.count - 1; n >= 0; --n) {
    const TrellisStep& step = path.step[n];
    back -= int64_t{kLanes} << (kTrellisWindow - step.next_bits);
    const int window = state << step.next_bits | back[state * kLanes + lane];
    const int kept = kTrellisWindow - step.bits;
    codes[path.row[n] * kLanes + vector] = static_cast<uint8_t>(window >> kept);
    state = window & ((1 << kept) - 1);
  }
}

// The best gain of each vector so far.
struct Choice {
  float error[kLanes];
  int lane[kLanes] = {};  // of the search that found it
};

// Tries every gain of every vector, as many at a time as there are lanes. back: as in Search, for few vectors alone, whose gains
// all fit into one search.
void ChooseGains(const Path& path, const float* z, int count, uint8_t* e, Choice& best,
                 uint8_t* back) {
  uint8_t middle[kLanes];
  std::copy_n(e, kLanes, middle);
  std::fill_n(best.error, kLanes, HUGE_VALF);
  Trial trial;
  float found[kLanes];
  for (int n = 0; n < kGains * count; ++n) {
    const int vector = n % count, byte = middle[vector] + kGainSteps[n / count];
    if (middle[vector] > 0) {
      trial.vector[trial.count] = static_cast<uint8_t>(vector);
      trial.e[trial.count++] = static_cast<uint8_t>(std::clamp(byte, 1, 255));
    }
    if (trial.count == 0 || (trial.count < kLanes && n + 1 < kGains * count)) continue;
    Search(path, z, trial, found, back);
    for (int l = 0; l < trial.count; ++l) {
      const int v = trial.vector[l];
      if (!(found[l] < best.error[v])) continue;
      e[v] = trial.e[l];
      best.error[v] = found[l];
      best.lane[v] = l;
    }
    trial.count = 0;
  }
}

// One more search, a lane a vector, at the gains that were chosen.
void SearchAgain(const Path& path, const float* z, int count, const uint8_t* e, Choice& best,
                 uint8_t* back) {
  Trial trial;
  for (int v = 0; v < count; ++v) {
    if (e[v] == 0) continue;
    best.lane[v] = trial.count;
    trial.vector[trial.count] = static_cast<uint8_t>(v);
    trial.e[trial.count++] = e[v];
  }
  float error[kLanes];
  if (trial.count > 0) Search(path, z, trial, error, back);
}

float ErrorOfZeros(const Path& path, const TrellisGroup& group, const float* z, int vector) {
  float sum = 0.0f;
  for (int n = 0; n < path.count; ++n) {
    const float x = z[path.row[n] * kLanes + vector];
    sum += group.weight[path.row[n]] * (x * x);
  }
  return sum;
}

}  // namespace

void EncodeTrellisGroup(const TrellisGroup& group, const float* z, int count, uint8_t* codes,
                        uint8_t* e) {
  std::fill_n(codes, group.rows * kLanes, uint8_t{0});
  Path path;
  MakePath(group, path);
  if (path.count == 0) return;
  const auto back = std::make_unique_for_overwrite<uint8_t[]>(path.back_bytes);
  const bool once = kGains * count <= kLanes;  // a token that comes alone: half the work
  Choice best;
  ChooseGains(path, z, count, e, best, once ? back.get() : nullptr);
  for (int v = 0; v < count; ++v) {
    if (best.error[v] >= ErrorOfZeros(path, group, z, v)) e[v] = 0;
  }
  if (!once) SearchAgain(path, z, count, e, best, back.get());
  for (int v = 0; v < count; ++v) {
    if (e[v] > 0) TraceBack(path, back.get(), best.lane[v], v, codes);
  }
}

}  // namespace kvring
#endif  // HWY_ONCE
