// SPDX-License-Identifier: Apache-2.0
// How many bits each coefficient of `tc` gets: reverse water-filling over all layers, heads, sides and coefficients, in
// classes of 8 neighbours in eigenvalue order (rotated-and-transform 4; Gersho and Gray, Vector Quantization and Signal
// Compression, 1992, ch. 8). Plain functions, deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvring {

inline constexpr int kTcClass = 8;    // coefficients of a class: b bits each are b bytes a token
inline constexpr int kTcMaxBits = 6;  // of a coefficient
inline constexpr int kTcGroup = 64;   // coefficients a gain byte

inline int TcClasses(int dim) { return (dim + kTcClass - 1) / kTcClass; }
inline int TcGroups(int dim) { return (dim + kTcGroup - 1) / kTcGroup; }

// Mean squared error of the b-bit Lloyd-Max code of N(0, 1), b in 0..7.
double TcDistortion(int bits);

// Bits of every class. energy: [classes] what a class's squared error weighs at distortion 1; budget: bits in all, one a
// class and step. Each next bit goes to the class that gains most, ties to the lower index, until the budget is spent or all
// have kTcMaxBits. Distortion falls convexly with the bits, so no other choice with this budget has a smaller sum of
// energy * distortion.
std::vector<uint8_t> WaterFill(std::span<const double> energy, int64_t budget);

// Bits a coefficient in hundredths, 100..600, of "tc3", "tc2.5", "tc@2.25"; 0 for other names.
int ParseTcRate(const std::string& name);

// Bits that classes may have in all: floor(rate * coefficients / 8), so that the mean never exceeds the rate. A last class of
// fewer than 8 coefficients is stored, and paid, as one of 8.
int64_t TcBudget(int rate_hundredths, int64_t coefficients);

}  // namespace kvring
