// SPDX-License-Identifier: Apache-2.0
// One product y[rows][n] = x[rows][k] W^T of a fixed shape, for up to kMatmulRows rows at a time on one thread. Shapes are
// shared by all layers that have them; weights are packed by the shape and kept by the layer. Private to kernels/.
//
// The law: a row's bits do not depend on how many rows share the call, nor on which of them it is. GetMatmulShape checks
// it on this CPU, once per shape, before anybody uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cpu/aligned_bytes.h"
#include "kernels/linear.h"

namespace kvring {

inline constexpr int64_t kMatmulRows = 64;

struct MatmulKey {
  LinearMath math;
  int64_t k, n;
  auto operator<=>(const MatmulKey&) const = default;
};

// Elements: x and w are float, BFloat16 or int8_t by the key's math; y is float, or int32_t for kInt8.
class MatmulShape {
 public:
  virtual ~MatmulShape() = default;
  virtual int64_t packed_bytes() const = 0;
  virtual bool Pack(const void* w /* [n][k] */, uint8_t* packed) const = 0;
  // rows in [1, kMatmulRows]; x [rows][k], y [rows][n], both dense. Thread-safe. False when the library reports an error.
  virtual bool Run(const void* x, int64_t rows, const uint8_t* packed, void* y) const = 0;
};

// Cached in the process. Null with *error set when no implementation of this form holds the law on this CPU.
std::shared_ptr<const MatmulShape> GetMatmulShape(const MatmulKey& key, std::string* error);

// Implementations, for the cache and for tests. Each may be null when the form does not exist there.
std::shared_ptr<const MatmulShape> MakeOnednnShape(const MatmulKey& key);
std::shared_ptr<const MatmulShape> MakePaddedShape(std::shared_ptr<const MatmulShape> inner,
                                                   const MatmulKey& key);
std::shared_ptr<const MatmulShape> MakePanelShape(const MatmulKey& key);  // our own, f32 only

// True when the shape holds the law for rows 1, 2, 3, 8, 37, 63 and 64, and for int8 when its sums are exact.
bool HoldsRowLaw(const MatmulShape& shape, const MatmulKey& key);

// Bytes of one element of x and w.
int64_t MatmulElementBytes(LinearMath math);

}  // namespace kvring
