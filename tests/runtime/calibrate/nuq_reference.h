// SPDX-License-Identifier: Apache-2.0
// A calibration of nuq as the spec tells it (kvquant 3.2, 3.3, 4.2), with every element in memory and every order by
// sorting: what the streaming one is compared with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec/nuq_rules.h"
#include "runtime/backward/backward_pass.h"
#include "runtime/calibrate/codec_calibrator.h"

namespace kvring {

// One layer of one window: random keys, values and gradients.
struct WindowRows {
  int64_t rows = 0;
  std::vector<float> k, v, dk, dv;
};

struct SyntheticText {
  KvShape shape;
  std::vector<RopeTable> rope;
  int64_t window = 0;
  std::vector<std::vector<WindowRows>> windows;  // [windows][layers]

  std::vector<const RopeTable*> RopePointers() const;
  // Runs both passes; `order` of windows, `gradients` of which window each takes its gradients (both may be empty: as they
  // are).
  absl::Status Feed(CodecCalibrator& calibrator, const std::vector<int>& order = {},
                    const std::vector<int>& gradients = {}) const;
};

// Channels of different spread and offset, heavy tails, a first token far from all others, gradients over many orders of
// magnitude.
SyntheticText MakeSyntheticText(int windows, uint32_t seed);

struct ReferenceSide {
  std::vector<float> lo, hi;  // by channel, where limits belong to channels
  struct Element {
    double u = 0, weight = 0;
  };
  std::vector<Element> elements;                 // that the code represents
  std::vector<std::vector<int>> block_outliers;  // [heads][complete blocks]
};

struct ReferenceRule {
  bool keys = true;
  bool by_channel = true;
  bool over_all_heads = false;  // the token's range, not its heads'
  double fraction = 0.0;
  NuqTableOptions options;
};
ReferenceSide ReferenceOf(const SyntheticText& text, int layer, const ReferenceRule& rule);

}  // namespace kvring
