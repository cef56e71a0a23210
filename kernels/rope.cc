// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include <cmath>

#include "kernels/sincos.h"

namespace kvring {

RopeTable MakeRopeTable(RopePairing pairing, int head_dim, int rotary, double base,
                        const std::vector<float>& factors) {
  RopeTable table;
  table.pairing = pairing;
  table.head_dim = head_dim;
  table.inv_freq.resize(rotary / 2);
  for (int i = 0; i < rotary / 2; ++i) {
    const double frequency = std::pow(base, -2.0 * i / rotary);
    table.inv_freq[i] = factors.empty() ? frequency : frequency / factors[i];
  }
  return table;
}

void RopeAngles(const RopeTable& table, int64_t position, float* cos_sin) {
  const int planes = table.planes();
  const double n = static_cast<double>(position);
  const double scale = table.attention_scale;
  for (int p = 0; p < planes; ++p) {
    const SinCosResult angle = SinCos(n * table.inv_freq[p]);
    cos_sin[2 * p] = static_cast<float>(angle.cos * scale);
    cos_sin[2 * p + 1] = static_cast<float>(angle.sin * scale);
  }
}

namespace {

// Rotates planes whose channels are `first + p * step` and `second + p * step`; `turn` is +1 or -1.
void RotatePlanes(int planes, int step, int second, float turn, float gain, const float* cos_sin,
                  float* x) {
  for (int p = 0; p < planes; ++p) {
    const float c = cos_sin[2 * p] * gain, s = cos_sin[2 * p + 1] * (turn * gain);
    float& a = x[p * step];
    float& b = x[p * step + second];
    const float a0 = a, b0 = b;
    a = a0 * c - b0 * s;
    b = a0 * s + b0 * c;
  }
}

void Rotate(const RopeTable& table, const float* cos_sin, float turn, float gain, float* x) {
  if (table.pairing == RopePairing::kInterleaved) {
    RotatePlanes(table.planes(), 2, 1, turn, gain, cos_sin, x);
  } else {
    RotatePlanes(table.planes(), 1, table.planes(), turn, gain, cos_sin, x);
  }
}

}  // namespace

void RopeRotate(const RopeTable& table, const float* cos_sin, float* x) {
  Rotate(table, cos_sin, 1.0f, 1.0f, x);
}

void RopeRotateBack(const RopeTable& table, const float* cos_sin, float* x) {
  // cos_sin carries the scale once; the inverse has to divide by it twice.
  const float scale = table.attention_scale;
  Rotate(table, cos_sin, -1.0f, 1.0f / (scale * scale), x);
}

}  // namespace kvring
