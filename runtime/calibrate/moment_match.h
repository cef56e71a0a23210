// SPDX-License-Identifier: Apache-2.0
// Q-Norm (kvquant spec 7.3): decoded values get the mean and deviation of what was encoded.
#pragma once

#include <span>
#include <vector>

#include "runtime/calibrate/weighted_kmeans.h"

namespace kvring {

struct MomentMatch {
  double a = 1.0, o = 0.0;  // decode with a * c + o
};

// Of the elements of a histogram with unit weights, each taken at its bin's mean and coded as the nearest centroid (ties to
// the lower one). Elements or codes without deviation: their means alone are matched.
MomentMatch MatchMoments(const WeightedHistogram& histogram, std::span<const float> centroids);

std::vector<float> DecodeTable(const MomentMatch& match, std::span<const float> centroids);

}  // namespace kvring
