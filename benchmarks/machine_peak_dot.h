// SPDX-License-Identifier: Apache-2.0
// Loops of dot-product instructions that Highway 1.0 does not reach. Each returns the products done, 0 where the CPU lacks
// the instruction. machine_peak's own.
#pragma once

#include <cstdint>

namespace kvring {

double Bf16DotLoop(int64_t steps, float* sink);
double Int8DotLoop(int64_t steps, float* sink);

}  // namespace kvring
