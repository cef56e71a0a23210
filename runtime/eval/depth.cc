// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/depth.h"

#include <algorithm>

namespace kvring {
namespace {

constexpr int64_t kFirstRange = 2048;  // the window that codecs are compared on elsewhere

}  // namespace

std::vector<std::pair<int64_t, int64_t>> DepthBounds(int64_t window) {
  std::vector<std::pair<int64_t, int64_t>> bounds;
  if (window <= kFirstRange) return bounds;
  for (int64_t begin = 0, end = kFirstRange; begin < window; begin = end, end *= 2)
    bounds.emplace_back(begin, std::min(end, window));
  return bounds;
}

DepthSums::DepthSums(int64_t window) {
  for (const auto& [begin, end] : DepthBounds(window)) {
    sums_.emplace_back();
    sums_.back().begin = begin;
    sums_.back().end = end;
  }
}

void DepthSums::Add(const WindowScore& score, const WindowScore& base) {
  for (DepthRange& range : sums_) {
    const int64_t end = std::min(range.end, static_cast<int64_t>(score.nats.size()));
    double nats = 0, over = 0, kl = 0;
    for (int64_t t = range.begin; t < end; ++t) {
      nats += score.nats[t];
      over += score.nats[t] - base.nats[t];
      kl += score.kl[t];
    }
    const int64_t tokens = end - range.begin;
    range.tokens += tokens;
    range.nats += nats;
    range.nats_over_f16 += over;
    range.kl += kl;
    range.window_nats.push_back(nats / static_cast<double>(tokens));
    range.window_kl.push_back(kl / static_cast<double>(tokens));
  }
}

std::vector<DepthRange> DepthSums::Ranges() const {
  std::vector<DepthRange> ranges = sums_;
  // A window of one token more than a power of two leaves nothing to score in its last range.
  std::erase_if(ranges, [](const DepthRange& range) { return range.tokens == 0; });
  for (DepthRange& range : ranges) {
    const double tokens = static_cast<double>(range.tokens);
    range.nats /= tokens;
    range.nats_over_f16 /= tokens;
    range.kl /= tokens;
  }
  return ranges;
}

}  // namespace kvring
