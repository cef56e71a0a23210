// SPDX-License-Identifier: Apache-2.0
// Trellis codes in plain loops, straight from the comment of kernels/codec/trellis_stream.h: defines correct. Slow; for tests.
#pragma once

#include <cstdint>
#include <vector>

namespace kvring {

// Bytes of a vector's stream; a group has group_rows coefficients.
int64_t TrellisBytesRef(const std::vector<uint8_t>& bits, int group_rows);

// The number that coefficient i of a stream stands for at gain 1.
double TrellisNumberRef(const std::vector<uint8_t>& bits, int group_rows, const uint8_t* stream,
                        int i);

// The least sum over the coefficients of a group of weight (z - gain number)^2 that any codes leave: every window of every
// coefficient after every window of the one before. Coefficients without bits count nothing.
double TrellisLeastErrorRef(const std::vector<uint8_t>& bits, const std::vector<float>& weight,
                            const std::vector<float>& z, double gain);

}  // namespace kvring
