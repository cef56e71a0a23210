// SPDX-License-Identifier: Apache-2.0
// What `kvring run` says: lines for people on standard error, the answer on standard output, JSON for scripts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/auto_rate.h"
#include "launch/calibration_lookup.h"
#include "launch/self_check.h"
#include "runtime/base/status.h"
#include "runtime/engine/rank_report.h"

namespace kvring {

struct RunResult {
  int64_t prompt_tokens = 0;
  std::vector<int32_t> tokens;
  std::string text;
  std::string finish_reason;  // "stop", "length"
  double ttft_s = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  std::string kv, numerics;
  int64_t kv_bytes = 0;      // of all ranks at the end
  int64_t kv_bytes_f16 = 0;  // of the same tokens in plain fp16
  std::vector<std::string> logits_hash;
  std::vector<RankReport> ranks;
  std::vector<UsedCalibration> calibration;
  std::vector<std::string> warnings;
  SelfCheckResult check;
  AutoRate auto_rate;
  int64_t planned_peak_bytes = 0;  // of the fullest rank's process, said before the start

  double prefill_rate() const { return prefill_seconds > 0 ? prompt_tokens / prefill_seconds : 0; }
  double decode_rate() const {
    return decode_seconds > 0 ? (static_cast<double>(tokens.size()) - 1) / decode_seconds : 0;
  }
};

// Writes the JSON of cli.md's `run` to a file, or to standard output for "-".
absl::Status WriteRunJson(const RunResult& result, const std::string& path);

// The closing lines; verbose adds what the codec could not represent.
void PrintRunSummary(const RunResult& result, bool verbose);

}  // namespace kvring
