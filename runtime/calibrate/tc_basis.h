// SPDX-License-Identifier: Apache-2.0
// From moments to what `tc` codes with: basis A = G^(1/2) U, variances of the coefficients, the weight of the loss; or, where
// that does worse on text it has not seen, a plain rotation in the same form (rotated-and-transform 4). Double; Eigen's
// symmetric solver, one thread: the same bytes for any number of threads.
#pragma once

#include <string>
#include <vector>

#include "kernels/codec/tc_model.h"
#include "kernels/rope.h"

namespace kvring {

// One side of one (layer, head). Matrices are [dim][dim], row by row.
struct TcMatrices {
  int dim = 0;
  std::vector<double> mean;        // [dim]
  std::vector<double> covariance;  // S of centred vectors (keys: after RoPE)
  std::vector<double> metric;      // G, without the ridge
};

// As kernels/codec_tables.h describes them, in fp32 as they are stored.
struct TcBasis {
  std::vector<float> mean, basis, inverse, lambda;
  double weight = 0.0;
  bool rotated = false;
};

// Share of the mean of G's diagonal that is added to it: directions without gradient in the calibration must not be lost.
inline constexpr double kTcRidge = 0.05;

TcBasis MakeTcBasis(const TcMatrices& side);

// `rot` as a basis: the rotation T; keys less their mean, with one balance factor a RoPE plane; values as they are, mean 0.
// rope: null for values.
TcBasis MakeRotationBasis(const TcMatrices& side, const RopeTable* rope);

// The basis of other text with the metric that an earlier one holds: A A^T = G, of any U. `side.metric` is not looked at. A
// rotation stays one, with its balance; mean and variance are redone.
// keys: of a rotation only these are centred.
TcBasis RemakeBasis(const TcSide& earlier, const TcMatrices& side, bool keys);

// What a text with these moments loses when coded with `basis` at `rate` bits a coefficient, of this side alone: each
// coefficient has the variance that the text gives it, the code was made for the basis' own, and errors weigh by the text's
// metric. Coefficients are taken as normal and errors as uncorrelated; the gain of 64 coefficients follows the text.
double ExpectedLoss(const TcBasis& basis, const TcMatrices& text, double rate);

// "" or what is wrong: the basis is not what it should be by more than fp32 can explain.
std::string CheckBasis(const TcBasis& basis, int dim);

}  // namespace kvring
