// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "kernels/linear.h"

namespace kvring {
namespace {

class LinearRef : public Linear {
 public:
  LinearRef(const float* weights, int64_t out, int64_t in)
      : out_(out), in_(in), w_(weights, weights + out * in) {}

  void Forward(const float* x, float* y, int64_t rows) const override {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < out_; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < in_; ++i)
          sum += static_cast<double>(x[r * in_ + i]) * w_[o * in_ + i];
        y[r * out_ + o] = static_cast<float>(sum);
      }
    }
  }

  Error BackwardData(const float* dy, float* dx, int64_t rows) const override {
    std::vector<double> sum(static_cast<size_t>(in_));
    for (int64_t r = 0; r < rows; ++r) {
      sum.assign(sum.size(), 0.0);
      for (int64_t o = 0; o < out_; ++o) {
        for (int64_t i = 0; i < in_; ++i)
          sum[i] += static_cast<double>(dy[r * out_ + o]) * w_[o * in_ + i];
      }
      for (int64_t i = 0; i < in_; ++i) dx[r * in_ + i] = static_cast<float>(sum[i]);
    }
    return {};
  }

  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  int64_t bytes() const override { return static_cast<int64_t>(w_.size() * sizeof(float)); }

 private:
  int64_t out_, in_;
  std::vector<float> w_;  // [out][in]
};

}  // namespace

std::unique_ptr<Linear> MakeLinearRef(const float* weights, int64_t out, int64_t in) {
  return std::make_unique<LinearRef>(weights, out, in);
}

}  // namespace kvring
