// SPDX-License-Identifier: Apache-2.0
// Losses by how much of the window a token has behind it: a codec that was calibrated for short contexts may lose more far in.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/eval/scorer.h"

namespace kvring {

// Tokens that are read at positions [begin, end) of their windows, all windows of one codec together. Position p predicts the
// token at p + 1, so the last position of a window is not scored.
struct DepthRange {
  int64_t begin = 0, end = 0;
  int64_t tokens = 0;               // scored, of all windows
  double nats = 0;                  // mean per token
  double nats_over_f16 = 0;         // mean per token
  double kl = 0;                    // mean KL(f16 || codec) per token
  std::vector<double> window_nats;  // means per token
  std::vector<double> window_kl;    // means per token
};

// [0, 2048), [2048, 4096), [4096, 8192) and so on by powers of two, the last one cut at `window`. None where the first range
// would be the whole window.
std::vector<std::pair<int64_t, int64_t>> DepthBounds(int64_t window);

// Sums over windows, in the order in which they are added.
class DepthSums {
 public:
  explicit DepthSums(int64_t window);

  // Scores of one window under the codec and under f16, window - 1 tokens each.
  void Add(const WindowScore& score, const WindowScore& base);
  std::vector<DepthRange> Ranges()
      const;  // means; empty before the first Add and where there are no ranges

 private:
  std::vector<DepthRange> sums_;  // nats, nats_over_f16, kl hold sums
};

}  // namespace kvring
