// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/normalized_side.h"

#include <algorithm>
#include <cmath>

#include "kernels/codec/nuq_rules.h"

namespace kvring {
namespace {

constexpr size_t Index(ElementWeight weight) { return static_cast<size_t>(weight); }

}  // namespace

NormalizedSide::NormalizedSide(const NormalizationRule& rule, const KvShape& shape)
    : rule_(rule),
      heads_(shape.kv_heads),
      dim_(rule.side == KvSide::kKey ? shape.dk : shape.dv),
      sinks_(rule.no_sinks ? 0 : kNuqSinks),
      per_side_(OutliersPerSide(int64_t{heads_} * dim_, rule.fraction)),
      slots_(shape.kv_heads, SlotCounts(shape.block_tokens)) {}

void NormalizedSide::Want(ElementWeight weight) {
  auto& histogram = histograms_[Index(weight)];
  if (histogram == nullptr) histogram = std::make_unique<WeightedHistogram>(kHistogramBins);
}

void NormalizedSide::SetLimits(ChannelTails::Limits limits) {
  limits_ = std::move(limits);
  channel_ranges_.clear();
  for (size_t c = 0; c < limits_.lo.size(); ++c) {
    const Normalizer range = ExactNormalizer(limits_.lo[c], limits_.hi[c]);
    channel_ranges_.push_back({range.z, range.s});
  }
}

void NormalizedSide::Add(const SideRows& rows) {
  const int64_t width = int64_t{heads_} * dim_;
  const bool silent = std::all_of(rows.g + std::min(sinks_, rows.rows) * width,
                                  rows.g + rows.rows * width, [](float g) { return g == 0.0f; });
  gradient_seen_ |= !silent;
  if (gradient_seen_) {
    silent_.reset();
  } else if (silent_ == nullptr) {
    silent_ = std::make_unique<WeightedHistogram>(kHistogramBins);
  }
  const int64_t members = 2 * per_side_;
  for (int64_t row = 0; row < rows.rows; ++row) {
    if (row < sinks_) {
      for (SlotCounts& slots : slots_) slots.AddSink(row);
      continue;
    }
    const float* const x = rows.x + row * width;
    const float* const g = rows.g + row * width;
    if (rule_.range == RangeOf::kChannel) {
      AddChannelRow(x, g, row);
    } else {
      AddTokenRow(x, g, rows.extremes.subspan(members > 0 ? row * members : 0, members), row);
    }
  }
}

// Outliers by thresholds, strictly; what is beyond and wins no slot is clamped by AddElement (3.4). A channel that never
// varies has nothing to teach.
void NormalizedSide::AddChannelRow(const float* x, const float* g, int64_t row) {
  const int width = heads_ * dim_;
  outliers_.clear();
  if (rule_.fraction > 0) {
    for (int c = 0; c < width; ++c) {
      if (x[c] < limits_.lo[c] || x[c] > limits_.hi[c]) outliers_.push_back(c);
    }
    if (rule_.cap) KeepWithinCap(x);
  }
  auto skip = outliers_.begin();
  for (int c = 0; c < width; ++c) {
    if (skip != outliers_.end() && *skip == c) {
      ++skip;
    } else if (channel_ranges_[c].s > 0) {
      AddElement(x[c], g[c], channel_ranges_[c]);
    }
  }
  CountOutliers(row, outliers_);
}

// The m farthest of each side in normalized units, ties to the lower channel (4.1).
void NormalizedSide::KeepWithinCap(const float* x) {
  std::vector<int32_t> above, below;
  for (const int32_t c : outliers_) (x[c] > limits_.hi[c] ? above : below).push_back(c);
  const auto distance = [&](int32_t c) {
    const float z = static_cast<float>(channel_ranges_[c].z);
    const float s = static_cast<float>(channel_ranges_[c].s);
    return std::fabs((x[c] - z) / s);  // infinite where s is zero: x differs from z
  };
  outliers_.clear();
  for (std::vector<int32_t>* side : {&above, &below}) {
    std::stable_sort(side->begin(), side->end(),
                     [&](int32_t a, int32_t b) { return distance(a) > distance(b); });
    const size_t kept = std::min(side->size(), static_cast<size_t>(per_side_));
    outliers_.insert(outliers_.end(), side->begin(), side->begin() + static_cast<int64_t>(kept));
  }
  std::sort(outliers_.begin(), outliers_.end());
}

// Outliers by rank over all heads; ranges of the rest, as they will be stored.
void NormalizedSide::AddTokenRow(const float* x, const float* g, std::span<const int32_t> extremes,
                                 int64_t row) {
  const int width = heads_ * dim_;
  const int piece = rule_.range == RangeOf::kToken ? width : dim_;
  std::vector<int32_t> skip;
  for (int begin = 0; begin < width; begin += piece) {
    skip.clear();
    const auto first = std::lower_bound(extremes.begin(), extremes.end(), begin);
    const auto last = std::lower_bound(first, extremes.end(), begin + piece);
    for (auto at = first; at != last; ++at) skip.push_back(*at - begin);
    const std::span<const float> part(x + begin, piece);
    const Normalizer stored = RoundedNormalizer(RangeWithout(part, skip));
    if (!(stored.s > 0)) continue;
    auto next = skip.begin();
    for (int i = 0; i < piece; ++i) {
      if (next != skip.end() && *next == i) {
        ++next;
      } else {
        AddElement(part[i], g[begin + i], {stored.z, stored.s});
      }
    }
  }
  CountOutliers(row, extremes);
}

void NormalizedSide::AddElement(float x, float g, const Range& range) {
  const double u = std::clamp((x - range.z) / range.s, -1.0, 1.0);
  const size_t bin = WeightedHistogram::Bin(u, kHistogramBins);
  const double fisher = static_cast<double>(g) * g;
  const double weights[] = {fisher * range.s * range.s, fisher, 1.0};
  for (size_t i = 0; i < histograms_.size(); ++i) {
    if (histograms_[i] != nullptr) histograms_[i]->AddAt(bin, u, weights[i]);
  }
  if (silent_ != nullptr) silent_->AddAt(bin, u, 1.0);
}

void NormalizedSide::CountOutliers(int64_t row, std::span<const int32_t> members) {
  auto at = members.begin();
  for (int head = 0; head < heads_; ++head) {
    int count = 0;
    for (; at != members.end() && *at < (head + 1) * dim_; ++at) ++count;
    slots_[head].AddToken(row, count);
  }
}

const WeightedHistogram& NormalizedSide::Histogram(ElementWeight weight) const {
  return silent_ != nullptr ? *silent_ : *histograms_[Index(weight)];
}

void NormalizedSide::DropHistograms() {
  for (auto& histogram : histograms_) histogram.reset();
  silent_.reset();
}

int64_t NormalizedSide::bytes() const {
  int64_t total = 0;
  for (const SlotCounts& slots : slots_) total += slots.bytes();
  constexpr int64_t kEach = int64_t{kHistogramBins} * 2 * static_cast<int64_t>(sizeof(double));
  for (const auto& histogram : histograms_) total += histogram != nullptr ? kEach : 0;
  return total + (silent_ != nullptr ? kEach : 0);
}

}  // namespace kvring
