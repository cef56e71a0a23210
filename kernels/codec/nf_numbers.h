// SPDX-License-Identifier: Apache-2.0
// Quantiles of the normal distribution scaled to [-1, 1] with an exact 0 (Dettmers et al., "QLoRA", 2023). Made by
// tests/golden/codec/tables.py.
#pragma once

#include <array>

namespace kvring {

inline constexpr std::array<float, 16> kNormal2 = {-1.0f, 0.0f, 0.435818165f, 1.0f};
inline constexpr std::array<float, 16> kNormal3 = {-1.0f,       -0.535022708f, -0.246931432f, 0.0f,
                                                   0.18333748f, 0.381993954f,  0.622985742f,  1.0f};
inline constexpr std::array<float, 16> kNormal4 = {
    -1.0f,         -0.696192806f, -0.525072959f, -0.394917426f, -0.284441309f, -0.184773403f,
    -0.091049976f, 0.0f,          0.079580315f,  0.160930144f,  0.246112251f,  0.337915137f,
    0.440709732f,  0.562616888f,  0.722956644f,  1.0f};

inline const std::array<float, 16>& NormalNumbers(int bits) {
  return bits == 4 ? kNormal4 : bits == 3 ? kNormal3 : kNormal2;
}

}  // namespace kvring
