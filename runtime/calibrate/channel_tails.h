// SPDX-License-Identifier: Apache-2.0
// The extremes of every channel of a stream of rows: enough of them for interpolated quantiles f/2 and 1 - f/2 of all
// samples (kvquant spec 3.2), without the samples. A multiset: the order of rows does not matter.
#pragma once

#include <cstdint>
#include <vector>

namespace kvring {

// Samples kept on each side, so that both neighbours of position (f/2)(n - 1) from the end are among them.
int64_t TailLength(int64_t samples, double fraction);

class ChannelTails {
 public:
  // samples: rows that will be given in all; fraction: the largest that is asked for.
  ChannelTails(int64_t channels, int64_t samples, double fraction);

  // x: [rows][channels], finite. Uses Threads() threads.
  void Add(const float* x, int64_t rows);

  // [channels] each: quantiles f/2 and 1 - f/2 of all rows; f = 0: least and largest. Every row has been given.
  struct Limits {
    std::vector<float> lo, hi;
  };
  Limits Quantiles(double fraction) const;

  int64_t bytes() const;

 private:
  // Heaps whose front is the element that leaves first: the largest of the least, the least of the largest.
  struct Channel {
    std::vector<float> least, largest;
  };
  int64_t samples_, keep_;
  std::vector<Channel> channels_;
};

}  // namespace kvring
