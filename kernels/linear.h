// SPDX-License-Identifier: Apache-2.0
// y = x W^T: a linear layer with weights packed once. Row i of y depends on row i of x and the weights alone, not on how
// many rows are computed with it (the law that makes every chunk size and rank count give the same bits).
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/error.h"

namespace kvring {

// Form of the products of linear layers. kInt8: both sides int8, one scale per row, int32 sums (exact in any order).
// kBlocks: weights as blocks of small integers, activations int8 under one scale per 32 (block_linear.h).
enum class LinearMath : uint8_t { kF32, kBf16, kInt8, kBlocks };
const char* LinearMathName(LinearMath math);

class Linear {
 public:
  virtual ~Linear() = default;
  // x: [rows][in], y: [rows][out], both fp32, dense. Thread-safe; uses Threads() threads.
  virtual void Forward(const float* x, float* y, int64_t rows) const = 0;
  // dx[rows][in] = dy[rows][out] W. The data path of a backward pass (no weight gradients), f32 products always.
  // Not every form keeps what it needs: an Error says so.
  virtual Error BackwardData(const float* dy, float* dx, int64_t rows) const = 0;
  virtual int64_t in() const = 0;
  virtual int64_t out() const = 0;
  virtual int64_t bytes() const = 0;  // of packed weights
};

struct LinearOptions {
  LinearMath math = LinearMath::kF32;
  bool keep_for_backward = false;  // keeps f32 weights for BackwardData
};

// weights: [out][in] fp32, copied (packed; for kBlocks rounded to blocks of int8); may be freed after the call. Null with *error set when the form is not
// available on this CPU or fails the law there (the implementation checks itself once per form).
std::unique_ptr<Linear> MakeLinear(const float* weights, int64_t out, int64_t in,
                                   const LinearOptions& options, std::string* error);

// The plain form in double: defines correct.
std::unique_ptr<Linear> MakeLinearRef(const float* weights, int64_t out, int64_t in);

// What the blocks of a file are like: bits of a code, numbers under a scale, whether there are offsets (block_linear.h).
struct BlockForm {
  int bits = 8, group = 32;
  bool offset = false;
  auto operator<=>(const BlockForm&) const = default;
};

// The fastest form on this machine (measured once, about 50 ms, cached in the process) among those whose rounding keeps the
// mean loss within the bound of docs/numerics.md: f32, bf16 and, for a file of blocks, blocks. f32 and bf16 are compared
// by a prompt's shape; blocks must win by the product of that time and the time of one row. Thread-safe.
LinearMath ChooseLinearMath(const std::optional<BlockForm>& blocks = std::nullopt);

}  // namespace kvring
