// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/tc_basis.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/codec/hadamard.h"
#include "kernels/codec/tc_bits.h"
#include "kernels/codec/tc_levels.h"

namespace kvring {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;

// Variances below this are as good as none: fp16 rows of size 1 are rounded by more. Relative to the largest, and absolute.
constexpr double kRelativeFloor = 1e-7, kAbsoluteFloor = 1e-10;

Matrix ToMatrix(const std::vector<double>& values, int dim) {
  const Matrix m = Eigen::Map<const Matrix>(values.data(), dim, dim);
  return 0.5 * (m + m.transpose());
}

struct Spectrum {
  Vector values;   // falling
  Matrix vectors;  // columns; the largest component of each is positive
};

Spectrum Decompose(const Matrix& symmetric) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(symmetric);
  Spectrum spectrum{solver.eigenvalues().reverse(), solver.eigenvectors().rowwise().reverse()};
  for (int j = 0; j < spectrum.vectors.cols(); ++j) {
    Eigen::Index largest = 0;
    spectrum.vectors.col(j).cwiseAbs().maxCoeff(&largest);
    if (spectrum.vectors(largest, j) < 0.0) spectrum.vectors.col(j) *= -1.0;
  }
  return spectrum;
}

std::vector<float> ToFloats(const Matrix& m) {
  std::vector<float> values(m.size());
  Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
      values.data(), m.rows(), m.cols()) = m.cast<float>();
  return values;
}

Matrix FromFloats(const float* values, int dim) {
  return Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
             values, dim, dim)
      .cast<double>();
}

std::vector<float> Floored(const Vector& lambda) {
  const double floor = std::max(kRelativeFloor * lambda.maxCoeff(), kAbsoluteFloor);
  std::vector<float> values;
  for (const double x : lambda) values.push_back(static_cast<float>(std::max(x, floor)));
  return values;
}

// T of `rot` as a matrix, y = x T^t.
Matrix RotationRows(int dim) {
  const Hadamard transform(dim);
  std::vector<float> unit(static_cast<size_t>(dim) * dim, 0.0f);
  for (int i = 0; i < dim; ++i) unit[i * dim + i] = 1.0f;
  transform.Rows(unit.data(), dim, transform.signs().data(), unit.data());
  return FromFloats(unit.data(), dim);  // row i: T applied to channel i
}

// Factor of each channel: (gradient energy / key energy)^(1/4) of its plane, geometric mean 1.
Vector Balance(const Matrix& covariance, const Matrix& metric, const RopeTable& rope) {
  const int dim = static_cast<int>(covariance.rows()), planes = dim - rope.planes();
  std::vector<int> plane(dim);
  for (int p = 0; p < rope.planes(); ++p) plane[rope.First(p)] = plane[rope.Second(p)] = p;
  for (int i = 2 * rope.planes(); i < dim; ++i) plane[i] = i - rope.planes();
  Vector key = Vector::Zero(planes), gradient = Vector::Zero(planes);
  for (int i = 0; i < dim; ++i) {
    key[plane[i]] += covariance(i, i);
    gradient[plane[i]] += metric(i, i);
  }
  // The floor of rot_state.h: planes without energy stay finite.
  const double k_floor = 0.001 * key.mean(), g_floor = 0.001 * gradient.mean();
  if (!(k_floor > 0.0 && g_floor > 0.0)) return Vector::Ones(dim);
  Vector w(planes);
  for (int p = 0; p < planes; ++p)
    w[p] = std::sqrt(std::sqrt((gradient[p] + g_floor) / (key[p] + k_floor)));
  w /= std::exp(w.array().log().mean());
  Vector by_channel(dim);
  for (int i = 0; i < dim; ++i) by_channel[i] = w[plane[i]];
  return by_channel;
}

// E (x - q(x))^2 for x ~ N(0, variance), coded with the b-bit table of N(0, 1).
double Distortion(int bits, double variance) {
  if (bits == 0) return variance;
  const TcLevels& levels = TcLevelsOf(bits);
  const double deviation = std::sqrt(variance);
  double error = 0.0, mass = 0.0;
  constexpr int kSteps =
      400;  // of the normal density over +-6 deviations: four digits are plenty to choose by
  for (int s = 0; s <= kSteps; ++s) {
    const double u = -6.0 + 12.0 * s / kSteps, x = u * deviation, p = std::exp(-u * u / 2);
    double nearest = HUGE_VAL;
    for (int c = 0; c < 1 << bits; ++c)
      nearest = std::min(nearest, std::fabs(x - levels.number[c]));
    error += p * nearest * nearest;
    mass += p;
  }
  return error / mass;
}

std::vector<uint8_t> BitsOf(const TcBasis& basis, int dim, double rate) {
  std::vector<double> energy(TcClasses(dim), 0.0);
  for (int i = 0; i < dim; ++i) energy[i / kTcClass] += basis.lambda[i];
  return WaterFill(energy, TcBudget(static_cast<int>(rate * 100), dim));
}

// Mean, basis, inverse and variances of `made` with this metric, whose mean eigenvalue is 1.
void Turn(const Matrix& metric, const TcMatrices& side, TcBasis& made) {
  const Spectrum g = Decompose(metric);
  const Vector root = g.values.cwiseMax(0.0).cwiseSqrt();
  const Matrix half = g.vectors * root.asDiagonal() * g.vectors.transpose();
  const Matrix inverse_half = g.vectors * root.cwiseInverse().asDiagonal() * g.vectors.transpose();
  const Spectrum u = Decompose(half * ToMatrix(side.covariance, side.dim) * half);
  made.mean.assign(side.mean.begin(), side.mean.end());
  made.basis = ToFloats(half * u.vectors);
  made.inverse = ToFloats(u.vectors.transpose() * inverse_half);
  made.lambda = Floored(u.values);
}

}  // namespace

TcBasis MakeTcBasis(const TcMatrices& side) {
  const int dim = side.dim;
  Matrix metric = ToMatrix(side.metric, dim);
  const double mean_diagonal = metric.trace() / dim;
  TcBasis made;
  made.weight = mean_diagonal * (1.0 + kTcRidge);
  // Without any gradient every direction is alike and weighs nothing.
  metric = mean_diagonal > 0.0 ? Matrix(metric / made.weight) : Matrix(Matrix::Zero(dim, dim));
  metric.diagonal().array() += mean_diagonal > 0.0 ? kTcRidge * mean_diagonal / made.weight : 1.0;
  Turn(metric, side, made);
  return made;
}

TcBasis RemakeBasis(const TcSide& earlier, const TcMatrices& side, bool keys) {
  const int dim = side.dim;
  const Matrix a = FromFloats(earlier.basis, dim);
  TcBasis made;
  made.weight = earlier.weight;
  made.rotated = earlier.rotated;
  if (!earlier.rotated) {
    Turn(a * a.transpose(), side, made);
    return made;
  }
  made.basis.assign(earlier.basis, earlier.basis + int64_t{dim} * dim);
  made.inverse.assign(earlier.inverse, earlier.inverse + int64_t{dim} * dim);
  Vector energy = ToMatrix(side.covariance, dim).diagonal();
  made.mean.assign(dim, 0.0f);
  for (int i = 0; i < dim; ++i) {
    if (keys) {
      made.mean[i] = static_cast<float>(side.mean[i]);
    } else {
      energy[i] += side.mean[i] * side.mean[i];
    }
  }
  // Rows of a rotation have length 1, and so these have their balance factor's.
  const double variance = (energy.array() * a.rowwise().squaredNorm().array()).mean();
  made.lambda = Floored(Vector::Constant(dim, variance));
  return made;
}

TcBasis MakeRotationBasis(const TcMatrices& side, const RopeTable* rope) {
  const int dim = side.dim;
  const Matrix metric = ToMatrix(side.metric, dim), rows = RotationRows(dim);
  Matrix covariance = ToMatrix(side.covariance, dim);
  Vector w = Vector::Ones(dim);
  TcBasis made;
  made.rotated = true;
  made.mean.assign(dim, 0.0f);
  if (rope != nullptr) {
    made.mean.assign(side.mean.begin(), side.mean.end());
    w = Balance(covariance, metric, *rope);
  } else {  // values are not centred
    const Vector mean = Eigen::Map<const Vector>(side.mean.data(), dim);
    covariance += mean * mean.transpose();
  }
  made.basis = ToFloats(w.asDiagonal() * rows);
  made.inverse = ToFloats(rows.transpose() * w.cwiseInverse().asDiagonal());
  const double variance = (covariance.diagonal().array() * w.array().square()).mean();
  made.lambda = Floored(Vector::Constant(dim, variance));
  made.weight = (metric.diagonal().array() / w.array().square()).mean();
  return made;
}

double ExpectedLoss(const TcBasis& basis, const TcMatrices& text, double rate) {
  const int dim = text.dim;
  const Matrix a = FromFloats(basis.basis.data(), dim),
               inverse = FromFloats(basis.inverse.data(), dim);
  Matrix covariance = ToMatrix(text.covariance, dim);
  // Moments are around the mean of all texts; a basis that does not subtract it meets it.
  Vector shift(dim);
  for (int i = 0; i < dim; ++i) shift[i] = text.mean[i] - basis.mean[i];
  covariance += shift * shift.transpose();
  const Vector variance = (a.transpose() * covariance * a).diagonal();
  const Vector weight = (inverse * ToMatrix(text.metric, dim) * inverse.transpose()).diagonal();
  const std::vector<uint8_t> bits = BitsOf(basis, dim, rate);
  double loss = 0.0;
  for (int group = 0; group < dim; group += kTcGroup) {
    const int end = std::min(dim, group + kTcGroup);
    double own = 0.0,
           made_for = 0.0;  // the gain: of coefficients with bits, weighted as the encoder does
    for (int i = group; i < end; ++i) {
      if (bits[i / kTcClass] == 0) continue;
      own += std::max(variance[i], 0.0);
      made_for += basis.lambda[i];
    }
    const double gain = made_for > 0.0 && own > 0.0 ? own / made_for : 1.0;
    for (int i = group; i < end; ++i) {
      const double unit = gain * basis.lambda[i];
      loss += weight[i] * unit * Distortion(bits[i / kTcClass], std::max(variance[i], 0.0) / unit);
    }
  }
  return loss;
}

std::string CheckBasis(const TcBasis& basis, int dim) {
  const Matrix a = FromFloats(basis.basis.data(), dim),
               inverse = FromFloats(basis.inverse.data(), dim);
  if (!a.allFinite() || !inverse.allFinite()) return "its basis is not finite";
  // There and back: were U orthogonal and the arithmetic exact, this would be the identity. Entries are rounded to fp32, so
  // a product may be off by two roundings of its rows' lengths (Cauchy-Schwarz); twice that is a fault.
  const double worst = (a * inverse - Matrix::Identity(dim, dim)).cwiseAbs().maxCoeff();
  const double lengths = a.rowwise().norm().maxCoeff() * inverse.colwise().norm().maxCoeff();
  if (worst > 4 * 0x1p-24 * lengths)
    return "its basis and inverse miss the identity by " + std::to_string(worst);
  // The ridge bounds the condition of G^(1/2) by sqrt(1 + dim / kTcRidge); a balance is a fourth root of bounded ratios.
  const double condition = std::sqrt(1.0 + dim / kTcRidge);
  if (!basis.rotated && lengths > 2 * condition)
    return "its basis has a condition of " + std::to_string(lengths);
  for (size_t i = 1; i < basis.lambda.size(); ++i) {
    if (basis.lambda[i] > basis.lambda[i - 1]) return "its variances do not fall";
  }
  return "";
}

}  // namespace kvring
