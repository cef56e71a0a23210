// SPDX-License-Identifier: Apache-2.0
// Calibrated tables for tests of tc, without a model: of rows that are about N(mean, 1), whose loss weighs directions unlike.
#pragma once

#include <memory>

#include "kernels/codec.h"
#include "kernels/codec_tables.h"

namespace kvring {

struct TestTcOptions {
  float mean = 0.0f;  // spread of the means of channels, of keys and values
  float uneven =
      0.1f;  // directions weigh from 1 - uneven to 1 + uneven, geometrically: lambda spans its square
  float sides = 0.3f;  // each next side weighs this share more, so that pages differ in size
  bool rotated_values = false;  // v_rot set
};

// y = (x - mean) U diag(a) with U a product of reflections; the variance of y is a^2 for white x. Same bits at every call.
std::shared_ptr<const CodecTables> TestTcTables(const KvShape& shape,
                                                const TestTcOptions& options = {});

}  // namespace kvring
