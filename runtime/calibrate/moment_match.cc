// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/moment_match.h"

#include <cmath>

namespace kvring {
namespace {

struct Moments {
  double w = 0, x = 0, xx = 0;
  void Add(double value, double weight) {
    w += weight;
    x += weight * value;
    xx += weight * value * value;
  }
  double mean() const { return w > 0 ? x / w : 0.0; }
  double deviation() const {
    return w > 0 ? std::sqrt(std::fmax(0.0, xx / w - mean() * mean())) : 0.0;
  }
};

double Nearest(std::span<const float> centroids, double u) {
  double nearest = centroids[0];
  for (const float c : centroids) {
    if (std::fabs(u - c) < std::fabs(u - nearest)) nearest = c;
  }
  return nearest;
}

}  // namespace

MomentMatch MatchMoments(const WeightedHistogram& histogram, std::span<const float> centroids) {
  Moments seen, coded;
  for (size_t i = 0; i < histogram.weight.size(); ++i) {
    const double w = histogram.weight[i];
    if (!(w > 0)) continue;
    const double u = histogram.sum[i] / w;
    seen.Add(u, w);
    coded.Add(Nearest(centroids, u), w);
  }
  // Below this the deviations are what rounding leaves of zero.
  constexpr double kNone = 1e-7;
  MomentMatch match;
  if (seen.deviation() > kNone && coded.deviation() > kNone) {
    match.a = seen.deviation() / coded.deviation();
  }
  match.o = seen.mean() - match.a * coded.mean();
  return match;
}

std::vector<float> DecodeTable(const MomentMatch& match, std::span<const float> centroids) {
  std::vector<double> table;
  for (const float c : centroids) table.push_back(match.a * c + match.o);
  return StrictlyAscending(table);
}

}  // namespace kvring
