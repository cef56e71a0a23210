// SPDX-License-Identifier: Apache-2.0
// One-dimensional weighted k-means on a histogram, solved exactly by dynamic programming over bin borders with monotone
// splits, O(C B log B) (kvquant spec 3.3; Wu 1991, Gronlund et al. arXiv:1701.07204). Deterministic, one thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvring {

// Bins of equal width over [-1, 1]; weight and weighted sum of the elements in each, double.
struct WeightedHistogram {
  explicit WeightedHistogram(int bins) : weight(bins), sum(bins) {}
  // u in [-1, 1].
  static size_t Bin(double u, size_t bins) {
    const auto bin = static_cast<size_t>((u + 1.0) * 0.5 * static_cast<double>(bins));
    return bin < bins ? bin : bins - 1;
  }
  void AddAt(size_t bin, double u, double w) {
    weight[bin] += w;
    sum[bin] += w * u;
  }
  void Add(double u, double w);  // u is clamped to [-1, 1]
  std::vector<double> weight, sum;
};

// Centroids for 2^b clusters, strictly ascending, for every asked number of clusters at once (ascending, at most 256). With
// fewer distinct elements than clusters every element has a centroid and the others halve the widest gaps. No weight at all:
// an even grid.
std::vector<std::vector<float>> WeightedKMeans(const WeightedHistogram& histogram,
                                               std::span<const int> clusters);

// In fp32; a number that is not above its predecessor becomes the next one that is.
std::vector<float> StrictlyAscending(const std::vector<double>& numbers);

// J = sum of w (u - nearest centroid)^2 up to a constant that does not depend on the centroids: elements of a bin are
// taken at their mean. For tests and notes.
double WeightedDistortion(const WeightedHistogram& histogram, std::span<const float> centroids);

}  // namespace kvring
