// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most, measured: the denominators of every share that a benchmark prints.
#pragma once

#include <cstdint>

namespace kvring {

// Fused multiply-adds in fp32 with the widest registers, all operands in registers, one core: FLOP per second (2 an element).
double PeakFlops();

// Dot products of bf16 pairs into fp32, and of u8 by s8 quadruples into int32, one core, all operands in registers:
// operations per second (2 a product). 0 where this CPU (or this build) has no instruction of its own for them.
double PeakBf16Flops();
double PeakInt8Ops();

// Reading an array of `bytes`, by default far larger than the last-level cache, one core: bytes per second. By CPU time of
// the thread, so that a busy machine costs less; memory that others read meanwhile is still missing.
double PeakReadBytes(int64_t bytes = int64_t{256} << 20);

// The same by `threads` threads at once, each an equal part, on huge pages where the system gives them, by the wall clock: the
// best of several tries. What attention of all cores is compared with.
double PeakReadBytesAll(int threads, int64_t bytes = int64_t{1} << 30);

}  // namespace kvring
