// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding from an explicit frequency table, so that every declared scaling (linear, NTK, YaRN, llama3)
// is a table and nothing else. Angles are formed in double: exact enough beyond 10^7 positions.
#pragma once

#include <cstdint>
#include <vector>

namespace kvring {

// Which two channels form a plane: (2i, 2i+1), as GGUF's llama files hold them, or (i, i + rotary/2), as NeoX, Qwen and
// safetensors files do. Channels from rotary on are not rotated.
enum class RopePairing : uint8_t { kInterleaved, kHalfSplit };

struct RopeTable {
  RopePairing pairing = RopePairing::kInterleaved;
  int head_dim = 0;
  std::vector<double> inv_freq;  // [rotary/2] radians per position
  float attention_scale = 1.0f;  // multiplies cos and sin (YaRN)

  int planes() const { return static_cast<int>(inv_freq.size()); }
  int First(int plane) const { return pairing == RopePairing::kInterleaved ? 2 * plane : plane; }
  int Second(int plane) const {
    return pairing == RopePairing::kInterleaved ? 2 * plane + 1 : plane + planes();
  }
};

// inv_freq[i] = base^(-2i/rotary), optionally divided by factors[i] (GGUF's rope_freqs tensor; empty for none).
RopeTable MakeRopeTable(RopePairing pairing, int head_dim, int rotary, double base,
                        const std::vector<float>& factors);

// cos_sin: [planes][2] = cos, sin of position * inv_freq, times attention_scale.
void RopeAngles(const RopeTable& table, int64_t position, float* cos_sin);

// Rotates one vector of head_dim channels in place.
void RopeRotate(const RopeTable& table, const float* cos_sin, float* x);

// The inverse rotation (attention_scale divided out); also what a backward pass needs.
void RopeRotateBack(const RopeTable& table, const float* cos_sin, float* x);

}  // namespace kvring
