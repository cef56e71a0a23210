// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/nuq_plan.h"

#include <algorithm>

#include "absl/strings/str_split.h"

namespace kvring {
namespace {

absl::Status CheckFlags(const std::string& codec, const CodecRow& row,
                        const std::vector<std::string>& flags) {
  const std::vector<std::string> known = absl::StrSplit(row.flags, ',');
  for (const std::string& flag : flags) {
    if (std::find(known.begin(), known.end(), flag) != known.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("unknown option '", flag, "' in '", codec, "'; ",
                                                   row.name, " has ", row.flags));
  }
  return absl::OkStatus();
}

absl::StatusOr<NuqWanted> ParseWanted(const std::string& codec) {
  std::vector<std::string> parts = absl::StrSplit(codec, ':');
  const CodecRow* const row = FindCodec(parts[0]);
  if (row == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown codec '", parts[0], "'"));
  }
  if (!row->calibrated || parts[0].rfind("nuq", 0) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec '", parts[0], "' needs no calibration; nuq4, nuq3 and nuq2 do"));
  }
  parts.erase(parts.begin());
  KVRING_RETURN_IF_ERROR(CheckFlags(codec, *row, parts));
  NuqWanted wanted;
  wanted.row = row;
  wanted.options = ParseNuqTableOptions(parts);
  wanted.id = NuqTableId(row->name, wanted.options);
  return wanted;
}

absl::Status Complete(const std::string& codec, NuqWanted& wanted) {
  const NuqTableOptions& options = wanted.options;
  if (options.fisher && options.unweighted) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", codec, "': fisher and unweighted exclude each other"));
  }
  const double f = wanted.row->outliers;
  wanted.weight = options.unweighted ? ElementWeight::kUnit
                  : options.fisher   ? ElementWeight::kFisher
                                     : ElementWeight::kFisherScale;
  const RangeOf keys = options.token_keys ? RangeOf::kTokenHead : RangeOf::kChannel;
  const bool cap = options.cap && keys == RangeOf::kChannel && f > 0;
  wanted.keys = {KvSide::kKey, keys, options.post_rope, options.no_sinks, cap, f};
  const RangeOf values = options.channel_values ? RangeOf::kChannel : RangeOf::kTokenHead;
  wanted.values = {KvSide::kValue, values, false, options.no_sinks, false, f};
  wanted.token_values = wanted.values;
  if (!options.channel_values) wanted.token_values.range = RangeOf::kToken;
  return absl::OkStatus();
}

void AddToPlan(const NuqWanted& wanted, NuqPlan& plan) {
  for (const NormalizationRule& rule : {wanted.keys, wanted.values, wanted.token_values}) {
    if (rule.range == RangeOf::kChannel) {
      double& fraction = plan.tails[TailsOf(rule)];
      fraction = std::max(fraction, rule.fraction);
    }
    plan.fits[{rule, wanted.weight}].insert(wanted.clusters());
    plan.histograms.insert({rule, wanted.weight});
    if (wanted.options.qnorm) plan.histograms.insert({rule, ElementWeight::kUnit});
  }
}

}  // namespace

absl::StatusOr<NuqPlan> MakeNuqPlan(const std::vector<std::string>& codecs) {
  NuqPlan plan;
  for (const std::string& codec : codecs) {
    KVRING_ASSIGN_OR_RETURN(NuqWanted wanted, ParseWanted(codec));
    KVRING_RETURN_IF_ERROR(Complete(codec, wanted));
    if (std::any_of(plan.wanted.begin(), plan.wanted.end(),
                    [&](const NuqWanted& other) { return other.id == wanted.id; })) {
      continue;
    }
    AddToPlan(wanted, plan);
    plan.wanted.push_back(std::move(wanted));
  }
  if (plan.wanted.empty()) return absl::InvalidArgumentError("no codec to calibrate");
  return plan;
}

}  // namespace kvring
