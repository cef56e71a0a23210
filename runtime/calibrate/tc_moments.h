// SPDX-License-Identifier: Apache-2.0
// Streaming moments of one side (keys or values) of one (layer, KV head) for `tc`: second moments of centred vectors and of
// gradients, fp64, in the text's order (rotated-and-transform 4). Kept apart by text, so that a text can be left out.
//
// Gradients are clipped: a few tokens have gradients far longer than all others and would own the metric. The share kClipped of
// longest ones is kept aside, exactly, while the text streams by; at the end they count with the length of the first that is
// not among them. Memory: two [dim][dim] sums a text, and the vectors kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvring {

// Share of the gradients that are shortened: norms beyond the 99.95 % quantile.
inline constexpr double kTcClipped = 0.0005;

// Vectors out of `total` that are shortened.
inline int64_t TcClippedCount(int64_t total) {
  return static_cast<int64_t>(kTcClipped * static_cast<double>(total));
}

class TcMoments {
 public:
  // total: vectors that will come in all.
  TcMoments(int dim, int texts, int64_t total);

  // x: [rows][dim] centred vectors, g: [rows][dim] their gradients (null: there are none), of one text.
  void Add(int text, const float* x, const float* g, int64_t rows);
  // After the last Add: the gradients kept aside join, shortened.
  void Finish();

  // Sums over texts but `left_out` (-1: none), divided by the number of vectors; [dim][dim]. Zeros when there are none.
  std::vector<double> Covariance(int left_out) const { return Mean(covariance_, left_out); }
  std::vector<double> Metric(int left_out) const { return Mean(metric_, left_out); }
  // Of one text alone.
  std::vector<double> CovarianceOf(int text) const { return MeanOf(covariance_, text); }
  std::vector<double> MetricOf(int text) const { return MeanOf(metric_, text); }
  int64_t bytes() const;

 private:
  struct Kept {
    double square = 0.0;  // of its length
    int64_t order = 0;    // of arrival: of equals the earlier is the longer
    int text = 0;
    std::vector<double> g;
  };
  using Sums = std::vector<std::vector<double>>;  // [texts][dim * dim]

  // The gradients that stay, after the longest were exchanged with those kept aside.
  void Exchange(int text, const float* g, int64_t rows, std::vector<double>* stay);
  void AddProducts(const double* x, int64_t rows, std::vector<double>* sum) const;
  std::vector<double> Mean(const Sums& sums, int left_out) const;
  std::vector<double> MeanOf(const Sums& sums, int text) const;

  int dim_;
  size_t kept_limit_;
  int64_t arrived_ = 0;
  std::vector<int64_t> count_;  // [texts]
  Sums covariance_, metric_;
  std::vector<Kept> kept_;  // a heap, the shortest on top
};

}  // namespace kvring
