// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvring {

// The instruction set that dynamic dispatch chose on this CPU, by Highway's name: "AVX3", "AVX2", "NEON". Part of the
// numerics id: bits are equal on equal instruction sets.
std::string SimdTarget();

}  // namespace kvring
