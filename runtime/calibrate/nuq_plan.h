// SPDX-License-Identifier: Apache-2.0
// What the codecs of a nuq calibration need, each thing once: codecs that differ in bits share histograms, those that differ
// in their options share what the options leave alone.
#pragma once

#include <compare>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec/nuq_rules.h"
#include "runtime/base/status.h"
#include "runtime/calibrate/normalized_side.h"

namespace kvring {

// Tails of the channels of one side.
struct TailRule {
  KvSide side = KvSide::kKey;
  bool post_rope = false;
  bool no_sinks = false;
  auto operator<=>(const TailRule&) const = default;
};

// Extremes of every token of one side.
struct RankRule {
  KvSide side = KvSide::kKey;
  bool post_rope = false;
  int64_t per_side = 0;
  auto operator<=>(const RankRule&) const = default;
};

// A datatype to fit: one histogram.
struct FitRule {
  NormalizationRule rule;
  ElementWeight weight = ElementWeight::kFisherScale;
  auto operator<=>(const FitRule&) const = default;
};

struct NuqWanted {
  std::string id;
  const CodecRow* row = nullptr;
  NuqTableOptions options;
  NormalizationRule keys, values, token_values;
  ElementWeight weight = ElementWeight::kFisherScale;
  int clusters() const { return 1 << row->bits; }
};

struct NuqPlan {
  std::vector<NuqWanted> wanted;          // one a table id, in the order asked for
  std::map<TailRule, double> tails;       // to the largest share of outliers
  std::map<FitRule, std::set<int>> fits;  // to numbers of clusters
  std::set<FitRule> histograms;           // of fits, and those that Q-Norm looks at
};

// INVALID_ARGUMENT: a name that is not nuq's, an option it does not have, no name at all.
absl::StatusOr<NuqPlan> MakeNuqPlan(const std::vector<std::string>& codecs);

inline TailRule TailsOf(const NormalizationRule& rule) {
  return {rule.side, rule.post_rope, rule.no_sinks};
}

}  // namespace kvring
