// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_linear.h"

#include <algorithm>
#include <cmath>

namespace kvring {
namespace {

constexpr int64_t kNumbers = 32;  // activations under one scale

// A row of activations as int8 and scales.
struct RoundedRow {
  std::vector<int8_t> q;
  std::vector<float> scales;
};

RoundedRow RoundRow(const float* x, int64_t in) {
  RoundedRow row;
  for (int64_t first = 0; first < in; first += kNumbers) {
    const int64_t end = std::min(in, first + kNumbers);
    float most = 0;
    for (int64_t i = first; i < end; ++i) {
      // std::max would pass over a NaN.
      if (!(std::fabs(x[i]) <= most)) most = std::isnan(most) ? most : std::fabs(x[i]);
    }
    const bool finite = std::isfinite(most);
    const float inverse = finite && most > 1e-36f ? 127.0f / most : 0.0f;
    row.scales.push_back(finite ? most / 127.0f : NAN);
    for (int64_t i = first; i < end; ++i)
      row.q.push_back(finite ? static_cast<int8_t>(std::nearbyint(x[i] * inverse)) : int8_t{0});
  }
  return row;
}

class BlockLinearRef : public Linear {
 public:
  BlockLinearRef(const std::vector<BlockWeights>& parts, int64_t in) : in_(in), parts_(parts) {
    for (const BlockWeights& part : parts_) out_ += part.rows;
  }

  void Forward(const float* x, float* y, int64_t rows) const override {
    for (int64_t r = 0; r < rows; ++r, x += in_) {
      const RoundedRow row = RoundRow(x, in_);
      for (const BlockWeights& part : parts_) {
        for (int64_t o = 0; o < part.rows; ++o) *y++ = Output(part, row, o);
      }
    }
  }

  Error BackwardData(const float* /*dy*/, float* /*dx*/, int64_t /*rows*/) const override {
    return {"a linear layer of blocks keeps nothing for a backward pass"};
  }
  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  int64_t bytes() const override {
    int64_t sum = 0;
    for (const BlockWeights& part : parts_) {
      sum +=
          static_cast<int64_t>(part.codes.size() + 4 * (part.scales.size() + part.offsets.size()));
    }
    return sum;
  }

 private:
  float Output(const BlockWeights& w, const RoundedRow& row, int64_t o) const {
    const int64_t groups = (in_ + w.group - 1) / w.group;
    const int8_t* codes = w.codes.data() + o * in_;
    float acc = 0;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * w.group;
      int32_t sum = 0, of_row = 0;
      for (int64_t i = first; i < std::min(in_, first + w.group); ++i) {
        sum += (codes[i] - w.zero) * row.q[i];
        of_row += row.q[i];
      }
      const float by = row.scales[first / kNumbers];
      acc = std::fma(static_cast<float>(sum), w.scales[o * groups + g] * by, acc);
      if (!w.offsets.empty())
        acc = std::fma(w.offsets[o * groups + g], by * static_cast<float>(of_row), acc);
    }
    return acc;
  }

  int64_t in_, out_ = 0;
  std::vector<BlockWeights> parts_;
};

}  // namespace

std::unique_ptr<Linear> MakeBlockLinearRef(const std::vector<BlockWeights>& parts, int64_t in) {
  return std::make_unique<BlockLinearRef>(parts, in);
}

}  // namespace kvring
