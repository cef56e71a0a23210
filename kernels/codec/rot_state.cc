// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/rot_state.h"

#include <algorithm>
#include <cmath>

namespace kvring {
namespace {

// Share of the mean that every plane's energy is floored by.
constexpr double kFloor = 0.001;

double MeanOf(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double value : x) sum += value;
  return sum / static_cast<double>(x.size());
}

float RoundToHalf(double x) { return HalfToFloat(FloatToHalfSaturated(static_cast<float>(x))); }

}  // namespace

RotState::RotState(const KvShape& shape, const RopeTable& rope, bool mean, bool balance)
    : shape_(shape),
      planes_(shape.dk - rope.planes()),
      mean_(mean),
      balance_(balance),
      plane_of_(shape.dk) {
  for (int p = 0; p < rope.planes(); ++p) plane_of_[rope.First(p)] = plane_of_[rope.Second(p)] = p;
  for (int i = 2 * rope.planes(); i < shape.dk; ++i) plane_of_[i] = i - rope.planes();
}

void RotState::ObserveToken(const float* k, const float* q, float* sums) const {
  float* const k_energy = sums + shape_.dk;
  float* const q_energy = k_energy + planes_;
  for (int i = 0; i < shape_.dk; ++i) {
    sums[i] += k[i];
    k_energy[plane_of_[i]] += k[i] * k[i];
  }
  for (int g = 0; g < shape_.group(); ++g) {
    for (int i = 0; i < shape_.dk; ++i)
      q_energy[plane_of_[i]] += q[g * shape_.dk + i] * q[g * shape_.dk + i];
  }
}

void RotState::Observe(const ObserveArgs& args, float* sums) const {
  if (floats() == 0) return;
  const int64_t dk = shape_.dk;
  for (int64_t t = 0; t < args.count; ++t) {
    const int64_t position = args.begin + t;
    if (position < kRotSinks || position >= kRotPrefix) continue;
    for (int h = 0; h < shape_.kv_heads; ++h) {
      const float* const k = args.k + (t * shape_.kv_heads + h) * dk;
      const float* const q = args.q + (t * shape_.query_heads + h * shape_.group()) * dk;
      ObserveToken(k, q, sums + h * SumFloats());
    }
  }
}

void RotState::Freeze(std::span<const float* const> block_sums, float* state) const {
  if (floats() == 0) return;
  std::vector<double> total(SumFloats(), 0.0);
  for (const float* const sums : block_sums) {
    for (size_t i = 0; i < total.size(); ++i) total[i] += sums[i];
  }
  std::vector<float> mean(shape_.dk);
  for (int i = 0; i < shape_.dk; ++i) mean[i] = RoundToHalf(total[i] / (kRotPrefix - kRotSinks));
  if (mean_) std::copy(mean.begin(), mean.end(), state);
  if (balance_)
    FreezeBalance(total, mean_ ? mean.data() : nullptr, state + (mean_ ? shape_.dk : 0));
}

void RotState::FreezeBalance(const std::vector<double>& sums, const float* mean,
                             float* weights) const {
  const double tokens = kRotPrefix - kRotSinks;
  std::vector<double> ek(planes_), eq(planes_);
  for (int p = 0; p < planes_; ++p) {
    ek[p] = sums[shape_.dk + p] / tokens;
    eq[p] = sums[shape_.dk + planes_ + p] / (tokens * shape_.group());
  }
  // mean |k - mu|^2 = mean |k|^2 - 2 mu . mean k + |mu|^2, with the mu that will be subtracted (none: plain energy).
  for (int i = 0; mean != nullptr && i < shape_.dk; ++i) {
    const double mu = mean[i];
    ek[plane_of_[i]] += mu * mu - 2.0 * mu * sums[i] / tokens;
  }
  for (double& energy : ek) energy = std::max(energy, 0.0);
  const double k_floor = kFloor * MeanOf(ek), q_floor = kFloor * MeanOf(eq);
  std::fill_n(weights, planes_, 1.0f);
  if (!(k_floor > 0.0 && q_floor > 0.0)) return;  // nothing to balance
  std::vector<double> w(planes_);
  double log_sum = 0.0;
  for (int p = 0; p < planes_; ++p) {
    w[p] = std::sqrt(std::sqrt((eq[p] + q_floor) / (ek[p] + k_floor)));
    log_sum += std::log(w[p]);
  }
  const double centre = std::exp(log_sum / planes_);
  for (int p = 0; p < planes_; ++p) weights[p] = RoundToHalf(w[p] / centre);
}

void RotState::Weights(const float* state, float* weights) const {
  std::fill_n(weights, shape_.dk, 1.0f);
  if (!balance_ || state == nullptr) return;
  const float* const w = state + (mean_ ? shape_.dk : 0);
  for (int i = 0; i < shape_.dk; ++i) weights[i] = w[plane_of_[i]];
}

}  // namespace kvring
