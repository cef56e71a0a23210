// SPDX-License-Identifier: Apache-2.0
#include "launch/auto_rate.h"

#include "absl/strings/str_format.h"
#include "launch/progress.h"

namespace kvring {
namespace {

constexpr char kAuto[] = "tc@auto";

}  // namespace

bool IsAutoRate(const std::string& spec) { return spec.substr(0, spec.find(':')) == kAuto; }

std::string WithRate(const std::string& spec, int tenths) {
  if (!IsAutoRate(spec)) return spec;
  const std::string fraction = tenths % 10 == 0 ? "" : absl::StrCat(".", tenths % 10);
  return absl::StrCat("tc@", tenths / 10, fraction, spec.substr(sizeof(kAuto) - 1));
}

absl::StatusOr<int> LargestRate(const std::function<absl::StatusOr<bool>(int tenths)>& fits) {
  int low = kLeastTenths - 1, high = kMostTenths + 1;  // low fits (or is none), high does not
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    KVRING_ASSIGN_OR_RETURN(const bool does, fits(middle));
    (does ? low : high) = middle;
  }
  return low;
}

std::optional<HeldOutPoint> AutoRate::Cost() const {
  if (!held_out) return std::nullopt;
  return HeldOutAt(*held_out, tenths / 10.0);
}

std::string AutoRate::Source() const {
  if (!held_out) return "unknown: the artifact has none";
  return absl::StrCat("held-out text of the calibration (", held_out->windows, " x ",
                      Grouped(held_out->window), " tokens, without :adapt)");
}

std::string AutoRate::Line() const {
  const auto cost = Cost();
  return absl::StrFormat(
      "%s: %.1f bits a coefficient fit for %s tokens (%.2f bits an element, %s bytes a token); "
      "nats a token %s",
      asked, tenths / 10.0, Grouped(context), bits,
      Grouped(static_cast<int64_t>(bytes_per_token + 0.5)),
      cost ? absl::StrFormat("%.4f on %s", cost->nats, Source()) : Source());
}

}  // namespace kvring
