// SPDX-License-Identifier: Apache-2.0
// What the packed attention of rot and tc has in common: from a page's view to kernels/cpu/attend_packed.h. Sinks are a tile of
// exact rows; the other slots are read as codes.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/codec/page_turns.h"
#include "kernels/cpu/attend_packed.h"

namespace kvring {

// Where the parts of a page begin, in bytes.
struct PackedPlaces {
  int64_t k_words = 0, k_scales = 0, v_words = 0, v_scales = 0;
};

struct PackedReading {
  PackedForm form;
  PackedPlaces places;
  const PageTurns* turns = nullptr;  // of this layer
};

// Where rows from `first` on sum values that lie in a basis of the sequence; empty at the begin of a call.
void GiveTurned(const AttendArgs& args, int64_t first, PackedScratch& scratch, float** o,
                float** o_m);

// Codec::AttendPacked with args.prepared set: pages up to the first that lies beyond the angles' tables.
int64_t AttendPackedViews(const PackedReading& reading, const AttendArgs& args,
                          std::span<const PageView> views, int64_t first, int64_t last,
                          AttendScratch& scratch, const SoftmaxPartial& partial);

}  // namespace kvring
