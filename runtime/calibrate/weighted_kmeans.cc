// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/weighted_kmeans.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kvring {
namespace {

// Distinct elements, ascending: bins with weight, each at its mean.
struct Points {
  std::vector<double> u, weight;
  size_t size() const { return u.size(); }
};

Points NonEmptyBins(const WeightedHistogram& histogram) {
  Points points;
  for (size_t i = 0; i < histogram.weight.size(); ++i) {
    if (!(histogram.weight[i] > 0)) continue;
    points.u.push_back(histogram.sum[i] / histogram.weight[i]);
    points.weight.push_back(histogram.weight[i]);
  }
  return points;
}

// Cost of putting points [i, j) into one cluster, from prefix sums. The sums are long double, since the weights of one layer
// span many orders of magnitude and a cluster may hold a small share of them; a difference of two then fits a double.
class Costs {
 public:
  explicit Costs(const Points& points) : sums_(points.size() + 1) {
    for (size_t i = 0; i < points.size(); ++i) {
      const long double w = points.weight[i], u = points.u[i];
      sums_[i + 1] = {sums_[i].w + w, sums_[i].wu + w * u, sums_[i].wuu + w * u * u};
    }
  }
  double Cost(size_t i, size_t j) const {
    const double w = static_cast<double>(sums_[j].w - sums_[i].w);
    const double wu = static_cast<double>(sums_[j].wu - sums_[i].wu);
    const double wuu = static_cast<double>(sums_[j].wuu - sums_[i].wuu);
    // A weight that vanishes beside its neighbours' sum costs nothing.
    return w > 0 ? std::max(0.0, wuu - wu * wu / w) : 0.0;
  }

 private:
  struct Sums {
    long double w = 0, wu = 0, wuu = 0;
  };
  std::vector<Sums> sums_;
};

// best[j]: least cost of points [0, j) in as many clusters as rounds were made; split[k][j]: where the last of k + 1
// clusters begins. The best split never moves left as j grows, so halves of the range bound each other.
class Solver {
 public:
  explicit Solver(const Points& points) : costs_(points), n_(points.size()) {
    best_.resize(n_ + 1);
    for (size_t j = 0; j <= n_; ++j) best_[j] = costs_.Cost(0, j);
    splits_.emplace_back(n_ + 1, 0u);
  }

  void AddCluster() {
    const size_t k = splits_.size();  // clusters of the round before
    splits_.emplace_back(n_ + 1, 0u);
    next_.assign(n_ + 1, std::numeric_limits<double>::infinity());
    if (k < n_) Fill(k + 1, n_, k, n_ - 1);
    best_.swap(next_);
  }

  // First points of the clusters, then n.
  std::vector<size_t> Borders(size_t clusters) const {
    std::vector<size_t> borders(clusters + 1, n_);
    for (size_t k = clusters; k-- > 0;) borders[k] = splits_[k][borders[k + 1]];
    return borders;
  }

 private:
  // Rows j in [first, last] with splits in [low, high].
  void Fill(size_t first, size_t last, size_t low, size_t high) {
    if (first > last) return;
    const size_t j = first + (last - first) / 2;
    double least = std::numeric_limits<double>::infinity();
    size_t at = low;
    for (size_t i = low; i <= std::min(high, j - 1); ++i) {
      const double cost = best_[i] + costs_.Cost(i, j);
      if (cost < least) least = cost, at = i;
    }
    next_[j] = least;
    splits_.back()[j] = static_cast<uint32_t>(at);
    if (j > first) Fill(first, j - 1, low, at);
    Fill(j + 1, last, at, high);
  }

  Costs costs_;
  size_t n_;
  std::vector<double> best_, next_;
  std::vector<std::vector<uint32_t>> splits_;
};

std::vector<double> Means(const Points& points, const std::vector<size_t>& borders) {
  std::vector<double> means;
  for (size_t k = 0; k + 1 < borders.size(); ++k) {
    long double w = 0, wu = 0;
    for (size_t i = borders[k]; i < borders[k + 1]; ++i) {
      w += points.weight[i];
      wu += static_cast<long double>(points.weight[i]) * points.u[i];
    }
    means.push_back(static_cast<double>(wu / w));
  }
  return means;
}

// More centroids than distinct elements: each element has its own, the others halve the widest gap, the ends of [-1, 1]
// counted as neighbours.
std::vector<double> WithHalvedGaps(std::vector<double> centroids, size_t clusters) {
  while (centroids.size() < clusters) {
    size_t widest = 0;
    double width = -1.0;
    const auto edge = [&](size_t i) {
      return i == 0 ? -1.0 : i > centroids.size() ? 1.0 : centroids[i - 1];
    };
    for (size_t i = 0; i <= centroids.size(); ++i) {
      const double gap = edge(i + 1) - edge(i);
      if (gap > width) width = gap, widest = i;
    }
    centroids.insert(centroids.begin() + static_cast<int64_t>(widest),
                     (edge(widest) + edge(widest + 1)) / 2);
  }
  return centroids;
}

std::vector<double> EvenGrid(int clusters) {
  std::vector<double> grid;
  for (int i = 0; i < clusters; ++i) grid.push_back((2.0 * i + 1.0) / clusters - 1.0);
  return grid;
}

}  // namespace

void WeightedHistogram::Add(double u, double w) {
  const double inside = std::clamp(u, -1.0, 1.0);
  AddAt(Bin(inside, weight.size()), inside, w);
}

// Means of neighbouring bins may be one number in fp32.
std::vector<float> StrictlyAscending(const std::vector<double>& numbers) {
  std::vector<float> ascending(numbers.begin(), numbers.end());
  for (size_t i = 1; i < ascending.size(); ++i) {
    if (ascending[i] <= ascending[i - 1])
      ascending[i] = std::nextafterf(ascending[i - 1], std::numeric_limits<float>::infinity());
  }
  return ascending;
}

std::vector<std::vector<float>> WeightedKMeans(const WeightedHistogram& histogram,
                                               std::span<const int> clusters) {
  const Points points = NonEmptyBins(histogram);
  Solver solver(points);
  std::vector<std::vector<float>> all;
  size_t made = 1;
  for (const int asked : clusters) {
    const auto wanted = static_cast<size_t>(asked);
    if (points.size() == 0) {
      all.push_back(StrictlyAscending(EvenGrid(asked)));
    } else if (points.size() <= wanted) {
      all.push_back(StrictlyAscending(WithHalvedGaps(points.u, wanted)));
    } else {
      for (; made < wanted; ++made) solver.AddCluster();
      all.push_back(StrictlyAscending(Means(points, solver.Borders(wanted))));
    }
  }
  return all;
}

double WeightedDistortion(const WeightedHistogram& histogram, std::span<const float> centroids) {
  const Points points = NonEmptyBins(histogram);
  double total = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    double nearest = std::numeric_limits<double>::infinity();
    for (const float c : centroids) nearest = std::min(nearest, std::fabs(points.u[i] - c));
    total += points.weight[i] * nearest * nearest;
  }
  return total;
}

}  // namespace kvring
