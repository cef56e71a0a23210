// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/tc_moments.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <tuple>

namespace kvring {
namespace {

using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

TcMoments::TcMoments(int dim, int texts, int64_t total)
    : dim_(dim),
      kept_limit_(static_cast<size_t>(TcClippedCount(total)) + 1),
      count_(texts, 0),
      covariance_(texts, std::vector<double>(static_cast<size_t>(dim) * dim, 0.0)),
      metric_(covariance_) {}

void TcMoments::AddProducts(const double* x, int64_t rows, std::vector<double>* sum) const {
  if (rows == 0) return;
  const Eigen::Map<const RowMatrix> in(x, rows, dim_);
  Eigen::Map<RowMatrix> out(sum->data(), dim_, dim_);
  out.noalias() += in.transpose() * in;
}

void TcMoments::Exchange(int text, const float* g, int64_t rows, std::vector<double>* stay) {
  const auto longer = [](const Kept& a, const Kept& b) {
    return std::tuple(a.square, b.order) > std::tuple(b.square, a.order);
  };
  for (int64_t r = 0; r < rows; ++r) {
    Kept own{0.0, arrived_++, text, std::vector<double>(g + r * dim_, g + (r + 1) * dim_)};
    for (const double v : own.g) own.square += v * v;
    kept_.push_back(std::move(own));
    std::push_heap(kept_.begin(), kept_.end(), longer);
    if (kept_.size() <= kept_limit_) continue;
    std::pop_heap(kept_.begin(), kept_.end(), longer);
    const Kept& out = kept_.back();
    if (out.text == text) {
      stay->insert(stay->end(), out.g.begin(), out.g.end());
    } else {
      AddProducts(out.g.data(), 1, &metric_[out.text]);
    }
    kept_.pop_back();
  }
}

void TcMoments::Add(int text, const float* x, const float* g, int64_t rows) {
  const std::vector<double> wide(x, x + rows * dim_);
  AddProducts(wide.data(), rows, &covariance_[text]);
  count_[text] += rows;
  if (g == nullptr) return;
  std::vector<double> stay;
  stay.reserve(static_cast<size_t>(rows) * dim_);
  Exchange(text, g, rows, &stay);
  AddProducts(stay.data(), static_cast<int64_t>(stay.size()) / dim_, &metric_[text]);
}

void TcMoments::Finish() {
  if (kept_.empty()) return;
  std::sort(kept_.begin(), kept_.end(),
            [](const Kept& a, const Kept& b) { return a.order < b.order; });
  double clip = kept_[0].square;
  for (const Kept& kept : kept_) clip = std::min(clip, kept.square);
  for (Kept& kept : kept_) {
    const double factor = kept.square > 0.0 ? std::sqrt(clip / kept.square) : 0.0;
    for (double& v : kept.g) v *= factor;
    AddProducts(kept.g.data(), 1, &metric_[kept.text]);
  }
  kept_.clear();
}

std::vector<double> TcMoments::Mean(const Sums& sums, int left_out) const {
  std::vector<double> mean(static_cast<size_t>(dim_) * dim_, 0.0);
  int64_t count = 0;
  for (int text = 0; text < static_cast<int>(sums.size()); ++text) {
    if (text == left_out) continue;
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += sums[text][i];
    count += count_[text];
  }
  for (double& x : mean) x /= static_cast<double>(std::max<int64_t>(count, 1));
  return mean;
}

std::vector<double> TcMoments::MeanOf(const Sums& sums, int text) const {
  std::vector<double> mean = sums[text];
  for (double& x : mean) x /= static_cast<double>(std::max<int64_t>(count_[text], 1));
  return mean;
}

int64_t TcMoments::bytes() const {
  const auto floats = static_cast<int64_t>(covariance_.size()) * 2 * dim_ * dim_;
  return (floats + static_cast<int64_t>(kept_.size()) * dim_) * 8;
}

}  // namespace kvring
