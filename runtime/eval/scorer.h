// SPDX-License-Identifier: Apache-2.0
// Losses of many codecs on one window, from hidden rows: each tile's reference logits are made once and compared with all.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/engine/transformer.h"

namespace kvring {

struct WindowScore {
  std::vector<float> nats;  // [scored] -log p(next token)
  std::vector<double> kl;   // [scored] KL(reference || this), nats
  int64_t top1_agree = 0;   // tokens whose most likely continuation is the reference's
};

// hidden[i]: [rows][hidden] of codec i, row r predicting ids[r + 1]; reference: the same of the reference run.
// Returns one score a codec. rows = ids.size() - 1 are scored.
absl::StatusOr<std::vector<WindowScore>> ScoreWindow(const Transformer& transformer, int64_t width,
                                                     int64_t vocab, std::span<const int32_t> ids,
                                                     std::span<const float> reference,
                                                     std::span<const std::vector<float>> hidden);

// One row: loss of `next`, and KL(p_reference || p) with both as logits. Sums in double.
struct RowScore {
  double nats, kl;
  bool agrees;
};
RowScore ScoreRow(std::span<const float> reference, double reference_lse,
                  std::span<const float> logits, int32_t next);

}  // namespace kvring
