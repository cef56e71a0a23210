// SPDX-License-Identifier: Apache-2.0
// Numbers of a bit-shift trellis code (Mao and Gray, "Rate-constrained trellis coded quantization", 2010; QTIP, Tseng et al.,
// NeurIPS 2024): a coefficient that gets b new bits stands for the entry that the last 7 bits of its row's stream name.
//
// One table a width, for N(0,1): entries in no order, as near to a source of independent normal numbers as 128 entries can be.
// Found by benchmarks/trellis_tables.cc; the entries here are the definition.
#pragma once

#include <array>
#include <cstdint>

namespace kvring {

inline constexpr int kTrellisWindow = 7;                     // bits that name an entry
inline constexpr int kTrellisEntries = 1 << kTrellisWindow;  // of a table
inline constexpr int kTrellisMaxBits = 6;                    // new bits of a coefficient

struct TrellisTable {
  float unit = 0.0f;
  std::array<int8_t, kTrellisEntries> level{};  // largest magnitude 127
  std::array<float, kTrellisEntries> number{};  // unit * level
};

// Tables of 0..6 bits, side by side; that of 0 bits is zeros.
const std::array<TrellisTable, kTrellisMaxBits + 1>& TrellisTables();

}  // namespace kvring
