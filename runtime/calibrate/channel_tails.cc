// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/channel_tails.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/parallel.h"

namespace kvring {
namespace {

constexpr int64_t kChannelsPerTask = 16;  // a cache line of each row

// `before(a, b)`: a stays rather than b. The heap's front is the one that stays least.
template <typename Before>
void Keep(std::vector<float>& heap, int64_t keep, float x, Before before) {
  if (static_cast<int64_t>(heap.size()) < keep) {
    heap.push_back(x);
    std::push_heap(heap.begin(), heap.end(), before);
  } else if (before(x, heap.front())) {
    std::pop_heap(heap.begin(), heap.end(), before);
    heap.back() = x;
    std::push_heap(heap.begin(), heap.end(), before);
  }
}

// Element at `position` of an ordered tail, interpolated between its neighbours.
template <typename Before>
float At(std::vector<float> heap, double position, Before before) {
  std::sort(heap.begin(), heap.end(), before);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, heap.size() - 1);
  const double share = position - static_cast<double>(below);
  return static_cast<float>(heap[below] + share * (static_cast<double>(heap[above]) - heap[below]));
}

}  // namespace

int64_t TailLength(int64_t samples, double fraction) {
  const double position = fraction / 2 * static_cast<double>(samples - 1);
  return std::min(samples, static_cast<int64_t>(std::ceil(position)) + 2);
}

ChannelTails::ChannelTails(int64_t channels, int64_t samples, double fraction)
    : samples_(samples), keep_(TailLength(samples, fraction)), channels_(channels) {
  for (Channel& channel : channels_) {
    channel.least.reserve(keep_);
    channel.largest.reserve(keep_);
  }
}

void ChannelTails::Add(const float* x, int64_t rows) {
  const auto channels = static_cast<int64_t>(channels_.size());
  ParallelFor((channels + kChannelsPerTask - 1) / kChannelsPerTask, [&](int64_t task) {
    const int64_t end = std::min(channels, (task + 1) * kChannelsPerTask);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = task * kChannelsPerTask; c < end; ++c) {
        const float value = x[row * channels + c];
        Keep(channels_[c].least, keep_, value, std::less<>());
        Keep(channels_[c].largest, keep_, value, std::greater<>());
      }
    }
  });
}

ChannelTails::Limits ChannelTails::Quantiles(double fraction) const {
  const double position = fraction / 2 * static_cast<double>(samples_ - 1);
  Limits limits;
  for (const Channel& channel : channels_) {
    limits.lo.push_back(At(channel.least, position, std::less<>()));
    limits.hi.push_back(At(channel.largest, position, std::greater<>()));
  }
  return limits;
}

int64_t ChannelTails::bytes() const {
  return static_cast<int64_t>(channels_.size()) * 2 * keep_ * static_cast<int64_t>(sizeof(float));
}

}  // namespace kvring
