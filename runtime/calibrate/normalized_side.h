// SPDX-License-Identifier: Apache-2.0
// One side of one layer under one rule of normalization: every element of the calibration text that the code will have to
// represent, in normalized units, as weighted histograms (kvquant spec 3.3 and 3.4); and the outliers, counted per block.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/codec.h"
#include "runtime/calibrate/channel_tails.h"
#include "runtime/calibrate/slot_counts.h"
#include "runtime/calibrate/weighted_kmeans.h"

namespace kvring {

enum class KvSide : uint8_t { kKey, kValue };
// Whose range normalizes an element: its channel's (thresholds of pass 1), that of its (token, head), that of its token over
// all heads (the online rule, spec 4.2).
enum class RangeOf : uint8_t { kChannel, kTokenHead, kToken };
enum class ElementWeight : uint8_t { kFisherScale, kFisher, kUnit };  // F s^2, F, 1

struct NormalizationRule {
  KvSide side = KvSide::kKey;
  RangeOf range = RangeOf::kChannel;
  bool post_rope = false;  // keys after RoPE
  bool no_sinks = false;   // no token is left out
  bool cap = false;        // kChannel: at most m outliers a side and token, over all heads
  double fraction = 0.0;   // of outliers
  auto operator<=>(const NormalizationRule&) const = default;
};

// One window of one layer.
struct SideRows {
  const float* x = nullptr;  // [rows][heads][dim], fp16-representable
  const float* g = nullptr;  // the gradient, alike
  int64_t rows = 0;
  // Extremes of each row, SelectExtremes with m a side: [rows][2m]; ranges of tokens alone, m > 0.
  std::span<const int32_t> extremes;
};

class NormalizedSide {
 public:
  NormalizedSide(const NormalizationRule& rule, const KvShape& shape);

  const NormalizationRule& rule() const { return rule_; }
  int64_t per_side() const { return per_side_; }  // m(D, f)
  void Want(ElementWeight weight);                // before the first row
  void SetLimits(ChannelTails::Limits limits);    // kChannel, before the first row
  const ChannelTails::Limits& limits() const { return limits_; }

  // One thread; windows in order.
  void Add(const SideRows& rows);

  // By `weight`; with unit weights instead when no gradient was seen at all (fell_back).
  const WeightedHistogram& Histogram(ElementWeight weight) const;
  bool fell_back() const { return silent_ != nullptr; }
  const std::vector<SlotCounts>& slots() const { return slots_; }  // [heads]
  void DropHistograms();
  int64_t bytes() const;

 private:
  struct Range {
    double z = 0, s = 0;
  };
  void AddChannelRow(const float* x, const float* g, int64_t row);
  void KeepWithinCap(const float* x);
  void AddTokenRow(const float* x, const float* g, std::span<const int32_t> extremes, int64_t row);
  void AddElement(float x, float g, const Range& range);
  void CountOutliers(int64_t row, std::span<const int32_t> members);

  NormalizationRule rule_;
  int heads_, dim_;
  int64_t sinks_, per_side_;
  ChannelTails::Limits limits_;
  std::vector<Range> channel_ranges_;  // [heads * dim]
  std::array<std::unique_ptr<WeightedHistogram>, 3> histograms_;
  std::unique_ptr<WeightedHistogram> silent_;  // unit weights, while no gradient has been seen
  bool gradient_seen_ = false;
  std::vector<SlotCounts> slots_;
  std::vector<int32_t> outliers_;  // of the row at hand, ascending
};

// Bins of a histogram over [-1, 1]: a bin's width is 2^-9 of the distance of 16 codes, so taking its elements at their mean
// moves no centroid that matters (spec 3.1).
inline constexpr int kHistogramBins = 65536;

}  // namespace kvring
