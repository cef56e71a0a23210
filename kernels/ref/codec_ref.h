// SPDX-License-Identifier: Apache-2.0
// The codecs' pages read in plain double loops, straight from the layout comments of kernels/codec: defines correct. And
// the rotation T as a matrix. Slow; for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/codec.h"

namespace kvring {

// T = H D of kernels/codec/hadamard.h as a dense matrix [dim][dim], from the definition of Sylvester's matrix.
std::vector<double> RotationMatrix(int dim);

struct RotPageRef {
  int bits = 0, block_tokens = 64;
  int dk = 0, dv = 0;
  bool grouped = false;  // g64
  const RopeTable* rope = nullptr;
  const float* mean = nullptr;     // [dk], null: none
  const float* weights = nullptr;  // [dk], by channel; null: ones
  bool trellis = false;
};

// Keys in the query domain [tokens][dk], T (w o RoPE(mu)) + code, sinks T (w o k); values in the value domain [tokens][dv].
std::vector<double> RotKeysRef(const RotPageRef& form, const PageView& page);
std::vector<double> RotValuesRef(const RotPageRef& form, const PageView& page);

// Codes and scale bytes of one page with one scale a vector, all slots: k [block][dk], v [block][dv].
struct RotCodesRef {
  std::vector<int> k, v;
  std::vector<uint8_t> k_scale, v_scale;
};
RotCodesRef RotPageCodes(const RotPageRef& form, const PageView& page);

struct GroupedPageRef {
  int bits = 0, block_tokens = 64;
  int dk = 0, dv = 0;
  const RopeTable* rope = nullptr;  // null: keys are kept after RoPE
  std::vector<double> numbers;      // what the codes stand for
};

std::vector<double> GroupedKeysRef(const GroupedPageRef& form, const PageView& page);  // after RoPE
std::vector<double> GroupedValuesRef(const GroupedPageRef& form, const PageView& page);

// One side of a nuq page (kernels/codec/nuq_side.h), of one KV head.
struct NuqSideRef {
  int dim = 0;
  bool by_channel = false;
  const float* lo = nullptr;    // [dim] thresholds of this head's channels, by channel
  const float* hi = nullptr;    // [dim]
  std::vector<double> numbers;  // what codes decode to, in units of the scale
  int slots = 0;                // of this head's page
  int shared_slots = 0;         // of KV head 0's page
};

struct NuqPageRef {
  int bits = 0, block_tokens = 64;
  int head = 0;
  const RopeTable* rope = nullptr;  // null: keys are kept after RoPE
  bool token = false;               // one scale for all heads of a token
  bool listed = false;              // outliers in the lists of KV head 0's page
  int unlisted = 0;                 // first tokens of the block that never have outliers: sinks
  NuqSideRef k, v;
};

std::vector<double> NuqKeysRef(const NuqPageRef& form, const PageView& page);  // after RoPE
std::vector<double> NuqValuesRef(const NuqPageRef& form, const PageView& page);

}  // namespace kvring
