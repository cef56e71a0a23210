// SPDX-License-Identifier: Apache-2.0
// The rotation T = H D of `rot`: D a fixed diagonal of signs, H orthogonal, built of Sylvester Hadamard matrices.
//
// Signs: bit 63 of splitmix64(kSignSeed + i) set makes channel i negative. H by size of the vector:
//   a power of two               one Hadamard matrix / sqrt(d);
//   m * 2^k with 2^k >= 16       m blocks of 2^k on the diagonal (80 = 5 x 16, 96 = 3 x 32, 112 = 7 x 16, 192 = 3 x 64);
//   else (100)                   the largest power of two p <= d, over the first p channels, then over the last p: blocks
//                                of 4 would mix too little to make coefficients near Gaussian.
// Results of a row never depend on its company or on the instruction set: additions only, in a fixed order.
#pragma once

#include <cstdint>
#include <vector>

namespace kvring {

inline constexpr uint64_t kSignSeed = 0x6b7672696e670001u;  // "kvring", 1
inline constexpr int kLanes = 16;                           // vectors handled together: one a lane

class Hadamard {
 public:
  explicit Hadamard(int dim);
  int dim() const { return dim_; }
  const std::vector<float>& signs() const { return signs_; }  // [dim], +1 or -1

  // tile [dim][lanes], one vector a column, lanes a multiple of kLanes: H x. The signs are the caller's to multiply in.
  void Columns(float* tile, int64_t lanes) const;

  // x: [rows][dim] to y (may be x). y = H (pre o x); y = post o (H^-1 x). pre, post: [dim].
  void Rows(const float* x, int64_t rows, const float* pre, float* y) const;
  void RowsInverse(const float* x, int64_t rows, const float* post, float* y) const;

  // H^-1 for columns.
  void ColumnsInverse(float* tile, int64_t lanes) const;

 private:
  struct Block {
    int begin, size;
    float norm;  // 1 / sqrt(size)
  };
  int dim_;
  std::vector<float> signs_;
  std::vector<Block> blocks_;  // applied in this order
};

}  // namespace kvring
