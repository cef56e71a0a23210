// SPDX-License-Identifier: Apache-2.0
// What one core of this machine can do at most, measured: the denominators of every share that a benchmark prints.
#pragma once

#include <cstdint>

namespace kvring {

// Fused multiply-adds in fp32 with the widest registers, all operands in registers: FLOP per second (2 an element).
double PeakFlops();

// Reading an array of `bytes`, by default far larger than the last-level cache, one core: bytes per second.
double PeakReadBytes(int64_t bytes = int64_t{256} << 20);

}  // namespace kvring
