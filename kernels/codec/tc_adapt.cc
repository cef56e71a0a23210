// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/tc_adapt.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "kernels/codec/small_matrix.h"

namespace kvring {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double kTokens = kTcPrefix - kTcSinks;
constexpr double kTableWeight = kTcPrefix;  // tokens that the calibration counts as
// Deviations as fp16: the smallest normal number, so that its inverse is one too.
constexpr double kSmallestDeviation = 0x1p-14;

float RoundToHalf(double x) { return HalfToFloat(FloatToHalfSaturated(static_cast<float>(x))); }

void AddProducts(const float* y, int dim, float* sums) {
  for (int i = 0; i < dim; ++i) {
    for (int j = i; j < dim; ++j) *sums++ += y[i] * y[j];
  }
}

void KeepSide(const TcSide& side, float* state) {
  float* const deviation = state + int64_t{side.dim} * side.dim;
  std::fill(state, deviation, 0.0f);
  for (int i = 0; i < side.dim; ++i) {
    state[i * side.dim + i] = 1.0f;
    deviation[i] = RoundToHalf(std::max(std::sqrt(double{side.lambda[i]}), kSmallestDeviation));
  }
}

// sums: upper triangle of the sequence's second moments.
void TurnSide(const TcSide& side, const double* sums, float* state) {
  const int dim = side.dim;
  Matrix m(dim, dim);
  for (int i = 0; i < dim; ++i) {
    for (int j = i; j < dim; ++j) m(i, j) = m(j, i) = *sums++ / (kTokens + kTableWeight);
    m(i, i) += kTableWeight * side.lambda[i] / (kTokens + kTableWeight);
  }
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(m);
  if (solver.info() != Eigen::Success || !solver.eigenvectors().allFinite())
    return KeepSide(side, state);
  for (int j = 0; j < dim; ++j) {
    const auto vector = solver.eigenvectors().col(dim - 1 - j);
    Eigen::Index largest = 0;
    vector.cwiseAbs().maxCoeff(&largest);
    const double sign = vector[largest] < 0.0 ? -1.0 : 1.0;
    for (int i = 0; i < dim; ++i) state[i * dim + j] = RoundToHalf(sign * vector[i]);
    const double variance = std::max(solver.eigenvalues()[dim - 1 - j], 0.0);
    state[dim * dim + j] = RoundToHalf(std::max(std::sqrt(variance), kSmallestDeviation));
  }
}

}  // namespace

TcAdapt::TcAdapt(std::shared_ptr<const TcModel> model, const KvShape& shape,
                 const std::vector<const RopeTable*>& rope)
    : model_(std::move(model)), shape_(shape), rope_(rope) {}

void TcAdapt::Observe(const ObserveArgs& args, float* sums) const {
  const RopeTable& rope = *rope_[args.layer];
  std::vector<float> angles(2 * rope.planes()), x(shape_.dk), y(shape_.dk);
  for (int64_t t = 0; t < args.count; ++t) {
    const int64_t position = args.begin + t;
    if (position < kTcSinks || position >= kTcPrefix) continue;
    RopeAngles(rope, position * std::max<int64_t>(model_->served_context(), kTcPrefix) / kTcPrefix,
               angles.data());
    for (int h = 0; h < shape_.kv_heads; ++h) {
      const TcSide& key = model_->Key(args.layer, h);
      const float* const k = args.k + (t * shape_.kv_heads + h) * shape_.dk;
      for (int i = 0; i < shape_.dk; ++i) x[i] = k[i] - key.mean[i];
      RopeRotate(rope, angles.data(), x.data());
      RowsTimesMatrix(x.data(), 1, key.basis, shape_.dk, shape_.dk, y.data());
      float* const own = sums + h * SumFloats();
      AddProducts(y.data(), shape_.dk, own);
      AddProducts(args.v + (t * shape_.kv_heads + h) * shape_.dv, shape_.dv,
                  own + Triangle(shape_.dk));
    }
  }
}

void TcAdapt::Freeze(int layer, int head, std::span<const float* const> block_sums,
                     float* state) const {
  std::vector<double> total(SumFloats(), 0.0);
  for (const float* const sums : block_sums) {
    for (size_t i = 0; i < total.size(); ++i) total[i] += sums[i];
  }
  const TcSide &key = model_->Key(layer, head), &value = model_->Value(layer, head);
  float* const value_state = state + SideFloats(shape_.dk);
  key.rotated ? KeepSide(key, state) : TurnSide(key, total.data(), state);
  value.rotated ? KeepSide(value, value_state)
                : TurnSide(value, total.data() + Triangle(shape_.dk), value_state);
}

}  // namespace kvring
