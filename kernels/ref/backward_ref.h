// SPDX-License-Identifier: Apache-2.0
// The plain forms of kernels/backward.h in double, straight from the formulas: define correct. Slow; for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backward.h"

namespace kvring {

using Doubles = std::vector<double>;

// Gradient with respect to x of RmsNorm, given dy; [rows][n].
Doubles RmsNormBackwardRef(const Doubles& x, const Doubles& weight, double epsilon,
                           const Doubles& dy);

struct SwiGluGradients {
  Doubles gate, up;
};
SwiGluGradients SwiGluBackwardRef(const Doubles& gate, const Doubles& up, const Doubles& dy);

struct CausalRefInput {
  CausalShape shape;
  Doubles q, k, v;  // [rows][heads][d], after RoPE
};
Doubles CausalAttentionRef(const CausalRefInput& in);  // [rows][query_heads][dv]

struct CausalRefGradients {
  Doubles q, k, v;
};
CausalRefGradients CausalAttentionBackwardRef(const CausalRefInput& in, const Doubles& d_out);

}  // namespace kvring
