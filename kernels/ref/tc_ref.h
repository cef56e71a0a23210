// SPDX-License-Identifier: Apache-2.0
// Pages of tc read in plain double loops, straight from the layout comments of kernels/codec/tc.cc and tc_planes.h: defines
// correct. Slow; for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec/tc_model.h"

namespace kvring {

struct TcPageRef {
  int block_tokens = 64;
  const RopeTable* rope = nullptr;
  TcSide key, value;
  std::vector<uint8_t> key_bits, value_bits;  // [classes]
  // adapt: state of the sequence for this head, [dk][dk], [dk], [dv][dv], [dv] (tc_adapt.h); null: none.
  const float* state = nullptr;
  bool trellis = false;
};

// Keys after RoPE [tokens][dk], sinks as they are: RoPE_n(mu) + z sqrt(lambda) A^-1.
std::vector<double> TcKeysRef(const TcPageRef& form, const PageView& page);
// Values as the model made them [tokens][dv], sinks brought back from the value domain.
std::vector<double> TcValuesRef(const TcPageRef& form, const PageView& page);

// The level of coefficient i of a slot, and what a unit of a class with this many bits stands for; 0 without bits.
int TcLevelRef(const std::vector<uint8_t>& bits, const uint8_t* part, int block, int slot, int i,
               bool key);
double TcUnitRef(int bits);

// The number that coefficient i of a slot stands for, before sqrt(lambda): gain * level; 0 without bits.
double TcCoefficientRef(const std::vector<uint8_t>& bits, const uint8_t* part, int block, int slot,
                        int i, bool key);

}  // namespace kvring
