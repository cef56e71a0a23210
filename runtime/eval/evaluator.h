// SPDX-License-Identifier: Apache-2.0
// Quality against bytes: every codec on the same windows of the same text, each token after a window's first scored,
// compared with an f16 cache token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/codec_tables.h"
#include "kernels/packed_queries.h"
#include "kernels/visibility.h"
#include "runtime/engine/rank_report.h"
#include "runtime/eval/depth.h"
#include "runtime/model/weights.h"

namespace kvring {

struct EvalOptions {
  std::shared_ptr<const Weights> weights;
  std::vector<std::string> codecs;
  std::shared_ptr<const CodecTables> tables;  // for codecs that need some
  VisibilityRule rule{Visibility::kTeacher, 512};
  int block_tokens = 64;
  int virtual_shards = 64;
  int ranks = 1;    // threads of this process
  int threads = 1;  // per rank
  AttentionForm attention;
  std::string numerics;
  int64_t window = 2048;
  int64_t windows = 16;
  int64_t start = 0;  // first token
  int64_t chunk = 0;  // tokens a step; 0: the whole window (which `teacher` needs)
};

struct EvalRow {
  std::string kv;
  // Allocated, per element of a full page; where pages grow with their content, of the windows' pages on average.
  double bits = 0;
  double bytes_per_token = 0;  // allocated in the run: pages, exact rows, sinks, state, padding
  double nats = 0;             // mean per scored token
  double ppl = 0;
  double nats_over_f16 = 0;
  std::pair<double, double> ci95{0, 0};
  double kl = 0;    // mean KL(f16 || this) per token
  double top1 = 0;  // share of tokens with f16's most likely continuation
  double seconds = 0;
  std::vector<double> window_nats;   // sums
  std::vector<double> window_kl;     // means per token
  std::vector<DepthRange> by_depth;  // none where the window is 2048 tokens or shorter
  int64_t saturated = 0, overflow = 0, clamped = 0;
  std::vector<LayerDrift> drift;  // of all windows, by layer
};

// done and total count windows x codecs.
using EvalProgress = std::function<void(int64_t done, int64_t total)>;

// ids: the whole text. INVALID_ARGUMENT when it is shorter than the windows asked for (with both numbers).
absl::StatusOr<std::vector<EvalRow>> Evaluate(const EvalOptions& options,
                                              const std::vector<int32_t>& ids,
                                              const EvalProgress& progress);

}  // namespace kvring
