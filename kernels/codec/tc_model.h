// SPDX-License-Identifier: Apache-2.0
// The tables of `tc` (kernels/codec_tables.h) as the codec uses them: checked once, then views into them, and the bits of
// every class at a given rate. Immutable, thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec_tables.h"

namespace kvring {

// Table id of `tc` at any rate.
inline constexpr const char* kTcTableId = "tc";

// One side of one (layer, KV head).
struct TcSide {
  int dim = 0;
  const float* mean = nullptr;     // [dim]
  const float* basis = nullptr;    // [dim][dim]: y = (x - mean) basis
  const float* inverse = nullptr;  // [dim][dim]: x = y inverse + mean
  const float* lambda = nullptr;   // [dim] variance of y, falling
  double weight = 0.0;             // loss of a unit of squared y
  bool rotated = false;  // a fixed rotation was better on held-out text: `adapt` leaves it alone
};

class TcModel {
 public:
  // Names the tensor that is missing, of another shape, or that holds a number it may not; "" when all is well.
  static std::string Check(const CodecTables& tables, const KvShape& shape);

  TcModel(std::shared_ptr<const CodecTables> tables, const KvShape& shape);

  const TcSide& Key(int layer, int head) const { return keys_[layer * heads_ + head]; }
  const TcSide& Value(int layer, int head) const { return values_[layer * heads_ + head]; }
  int64_t served_context() const { return served_context_; }

  // Bits of the classes of every side at a rate (hundredths of a bit): [layer * heads + head][classes], all of one water-filling.
  struct Bits {
    std::vector<std::vector<uint8_t>> keys, values;
  };
  Bits Allocate(int rate_hundredths) const;

 private:
  std::shared_ptr<const CodecTables> tables_;
  int heads_;
  std::vector<TcSide> keys_, values_;
  int64_t served_context_ = 0;
};

}  // namespace kvring
