// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "benchmarks/machine_peak_dot.h"

namespace kvring {
namespace {

constexpr int kChains = 12;  // independent sums: enough for latency 4 to 6 at two a cycle

__attribute__((target("avx512f,avx512bf16"))) void Bf16Loop(int64_t steps, float* sink) {
  const __m512i ones = _mm512_set1_epi16(0x3f80);
  const __m512bh a = (__m512bh)ones;
  __m512 sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_set1_ps(static_cast<float>(c));
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_dpbf16_ps(sums[c], a, a);
  }
  // One lane of each chain: that it was computed is all that matters.
  for (int c = 0; c < kChains; ++c) *sink += _mm512_cvtss_f32(sums[c]);
}

__attribute__((target("avx512f,avx512vnni"))) void Int8Loop(int64_t steps, float* sink) {
  const __m512i a = _mm512_set1_epi8(1);
  __m512i sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_set1_epi32(c);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_dpbusd_epi32(sums[c], a, a);
  }
  for (int c = 0; c < kChains; ++c) *sink += static_cast<float>(_mm512_cvtsi512_si32(sums[c]));
}

}  // namespace

double Bf16DotLoop(int64_t steps, float* sink) {
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
  Bf16Loop(steps, sink);
  return 32.0 * kChains * static_cast<double>(steps);
}

double Int8DotLoop(int64_t steps, float* sink) {
  if (!__builtin_cpu_supports("avx512vnni")) return 0;
  Int8Loop(steps, sink);
  return 64.0 * kChains * static_cast<double>(steps);
}

}  // namespace kvring
