// SPDX-License-Identifier: Apache-2.0
// How well every codec's cache gives back sentences planted in a text, scored by the log-probability of what was asked for:
// small models seldom answer right, but how much less they know with a packed cache than with f16 can be measured.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/eval/evaluator.h"
#include "runtime/eval/needles.h"

namespace kvring {

struct RetrievalRow {
  std::string kv;
  double bits = 0;                       // allocated, per element of a full page
  double log_prob = 0;                   // mean over needles, of the whole phrase, nats
  double over_f16 = 0;                   // log_prob less that of f16, needle by needle
  std::pair<double, double> ci95{0, 0};  // of over_f16; texts are drawn whole
  double found = 0;  // share of needles each of whose tokens was the most likely one
  std::vector<double> depth_log_prob;  // [depths] means over texts
  std::vector<double> depth_over_f16;  // [depths]
  std::vector<double> depth_found;     // [depths]
  std::vector<float> needle_log_prob;  // [texts][depths]
  double seconds = 0;
  std::vector<LayerDrift> drift;  // of all texts, by layer
};

struct RetrievalResult {
  std::vector<RetrievalRow> rows;  // one a codec
  // The same questions after the texts without their sentences, f16: what is known without having read them.
  double control_log_prob = 0;
  double control_found = 0;
};

// Each text is read once a codec under options.rule; every question is asked to a fork of it. Of EvalOptions, windows do not
// matter. done and total of `progress` count texts x (codecs + f16).
absl::StatusOr<RetrievalResult> EvaluateRetrieval(const EvalOptions& options,
                                                  const std::vector<NeedleText>& texts,
                                                  const EvalProgress& progress);

}  // namespace kvring
