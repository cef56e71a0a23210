// SPDX-License-Identifier: Apache-2.0
// A straight line through points by least squares, and how much of the spread it explains.
#pragma once

#include <span>

namespace kvring {

struct LineFit {
  double slope = 0, intercept = 0;
  double r2 = 0;  // 1: all points lie on the line
};

// At least two points with different x; x and y are equally long.
inline LineFit FitLine(std::span<const double> x, std::span<const double> y) {
  const double n = static_cast<double>(x.size());
  double mean_x = 0, mean_y = 0, xx = 0, xy = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) mean_x += x[i] / n, mean_y += y[i] / n;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  LineFit fit;
  fit.slope = xy / xx;
  fit.intercept = mean_y - fit.slope * mean_x;
  fit.r2 = yy > 0 ? xy * xy / (xx * yy) : 1;
  return fit;
}

}  // namespace kvring
