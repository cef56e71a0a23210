// SPDX-License-Identifier: Apache-2.0
// A linear layer as column slices of packed weights. Slices and row tiles depend on the shape alone: threads only decide
// who runs which, so results do not depend on their number.
#include "kernels/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/block_linear.h"
#include "kernels/convert.h"
#include "kernels/cpu/matmul_shape.h"
#include "kernels/cpu/quantize_rows.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

// Weights of one slice: large enough to hide the cost of a call, small enough for the second-level cache.
constexpr int64_t kSliceWeights = 160 * 1024;
// Activations are converted this many rows at a time, which bounds the buffer.
constexpr int64_t kConvertRows = 1024;

int64_t SliceColumns(int64_t out, int64_t in) {
  const int64_t slices = std::max<int64_t>(1, out * in / kSliceWeights);
  const int64_t columns = (out + slices - 1) / slices;
  return std::min(out, (columns + 63) / 64 * 64);
}

struct Slice {
  int64_t first = 0, columns = 0;
  std::shared_ptr<const MatmulShape> shape;
  AlignedBytes packed;
};

class SlicedLinear : public Linear {
 public:
  SlicedLinear(int64_t out, int64_t in, LinearMath math) : out_(out), in_(in), math_(math) {}

  bool Pack(const float* weights, std::string* error) {
    const int64_t width = SliceColumns(out_, in_);
    if (math_ == LinearMath::kInt8) scales_.resize(static_cast<size_t>(out_));
    for (int64_t first = 0; first < out_; first += width) {
      slices_.push_back({first, std::min(width, out_ - first), nullptr, nullptr});
      if (!PackSlice(weights, &slices_.back(), error)) return false;
    }
    return true;
  }

  bool KeepForBackward(const float* weights, std::string* error) {
    std::vector<float> turned(static_cast<size_t>(out_ * in_));
    Transpose(weights, out_, in_, turned.data());
    backward_ = MakeLinear(turned.data(), in_, out_, {LinearMath::kF32, false}, error);
    return backward_ != nullptr;
  }

  void Forward(const float* x, float* y, int64_t rows) const override {
    for (int64_t r = 0; r < rows; r += kConvertRows) {
      ForwardRows(x + r * in_, y + r * out_, std::min(kConvertRows, rows - r));
    }
  }

  Error BackwardData(const float* dy, float* dx, int64_t rows) const override {
    if (backward_ == nullptr) return {"this linear layer was made without keep_for_backward"};
    backward_->Forward(dy, dx, rows);
    return {};
  }

  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  int64_t bytes() const override {
    int64_t sum = backward_ == nullptr ? 0 : backward_->bytes();
    for (const Slice& slice : slices_) sum += slice.shape->packed_bytes();
    return sum + static_cast<int64_t>(scales_.size() * sizeof(float));
  }

 private:
  bool PackSlice(const float* weights, Slice* slice, std::string* error) {
    const bool int8 = math_ == LinearMath::kInt8;
    slice->shape = GetMatmulShape({math_, in_, slice->columns}, error);
    if (slice->shape == nullptr) return false;
    slice->packed = AllocateWeights(slice->shape->packed_bytes());
    const float* w = weights + slice->first * in_;
    std::vector<uint8_t> elements;
    const void* from = w;
    if (math_ != LinearMath::kF32) {
      elements.resize(static_cast<size_t>(slice->columns * in_ * MatmulElementBytes(math_)));
      Convert(w, slice->columns, elements.data(), int8 ? scales_.data() + slice->first : nullptr);
      from = elements.data();
    }
    if (slice->shape->Pack(from, slice->packed.get())) return true;
    *error = "packing the weights of a linear layer failed";
    return false;
  }

  // Rows of length in_ in the form of the products.
  void Convert(const float* x, int64_t rows, uint8_t* to, float* scales) const {
    if (math_ == LinearMath::kBf16) {
      FloatToBFloat16(x, rows * in_, reinterpret_cast<BFloat16*>(to));
    } else {
      QuantizeRows(x, rows, in_, reinterpret_cast<int8_t*>(to), scales);
    }
  }

  void ForwardRows(const float* x, float* y, int64_t rows) const {
    const int64_t tiles = (rows + kMatmulRows - 1) / kMatmulRows;
    const int64_t row_bytes = in_ * MatmulElementBytes(math_);
    thread_local std::vector<uint8_t> elements;
    thread_local std::vector<float> scales;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(x);
    if (math_ != LinearMath::kF32) {
      elements.resize(static_cast<size_t>(rows * row_bytes));
      scales.resize(static_cast<size_t>(rows));
      uint8_t* to = elements.data();
      float* row_scales = scales.data();
      ParallelFor(tiles, [&](int64_t tile) {
        const int64_t first = tile * kMatmulRows;
        Convert(x + first * in_, std::min(kMatmulRows, rows - first), to + first * row_bytes,
                row_scales + first);
      });
      from = to;
    }
    const float* row_scales = scales.data();
    ParallelFor(tiles * static_cast<int64_t>(slices_.size()), [&](int64_t task) {
      const int64_t first = task % tiles * kMatmulRows;
      RunTile(slices_[task / tiles], from + first * row_bytes, row_scales + first,
              std::min(kMatmulRows, rows - first), y + first * out_);
    });
  }

  // Products are dense; where a slice's rows are not, they go through a buffer.
  void RunTile(const Slice& slice, const uint8_t* x, const float* row_scales, int64_t rows,
               float* y) const {
    thread_local std::vector<int32_t> buffer;
    buffer.resize(static_cast<size_t>(kMatmulRows * slice.columns));
    const bool direct = math_ != LinearMath::kInt8 && (rows == 1 || slice.columns == out_);
    y += slice.first;
    void* to = direct ? static_cast<void*>(y) : buffer.data();
    if (!slice.shape->Run(x, rows, slice.packed.get(), to)) {
      // The library has run this very shape in the law check; should it fail now, NaN says so to whoever reads y.
      for (int64_t r = 0; r < rows; ++r) std::fill_n(y + r * out_, slice.columns, NAN);
    } else if (math_ == LinearMath::kInt8) {
      ScaleSums(buffer.data(), rows, slice.columns, row_scales, scales_.data() + slice.first, y,
                out_);
    } else if (!direct) {
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(y + r * out_, buffer.data() + r * slice.columns,
                    static_cast<size_t>(slice.columns * 4));
      }
    }
  }

  int64_t out_, in_;
  LinearMath math_;
  std::vector<Slice> slices_;
  std::vector<float> scales_;  // [out], kInt8 only
  std::unique_ptr<Linear> backward_;
};

}  // namespace

const char* LinearMathName(LinearMath math) {
  switch (math) {
    case LinearMath::kF32:
      return "f32";
    case LinearMath::kBf16:
      return "bf16";
    case LinearMath::kInt8:
      return "int8";
    case LinearMath::kBlocks:
      return "blocks";
  }
  return "unknown";
}

std::unique_ptr<Linear> MakeLinear(const float* weights, int64_t out, int64_t in,
                                   const LinearOptions& options, std::string* error) {
  if (options.math == LinearMath::kBlocks) {
    if (options.keep_for_backward) {
      *error = "products of blocks have no backward pass";
      return nullptr;
    }
    return MakeBlockLinear({RoundToBlocks(weights, out, in)}, in);
  }
  auto linear = std::make_unique<SlicedLinear>(out, in, options.math);
  if (!linear->Pack(weights, error)) return nullptr;
  if (options.keep_for_backward && !linear->KeepForBackward(weights, error)) return nullptr;
  return linear;
}

}  // namespace kvring
