// SPDX-License-Identifier: Apache-2.0
// What `kvring calibrate` says when it is done: a table for people, JSON for scripts.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "runtime/calibrate/calibrate.h"

namespace kvring {

struct CalibrateReport {
  std::string file;  // the artifact
  double seconds = 0.0, held_out_s = 0.0;
  int64_t file_bytes = 0, peak_rss_bytes = 0;
};

// Of a process that began at `start` and has written `file`.
CalibrateReport MeasureCalibrate(const std::string& file, absl::Time start, double held_out_s);

void PrintCalibrateReport(const CalibrationResult& result, const CalibrateReport& report);

// To a file, or to standard output for "-".
absl::Status WriteCalibrateJson(const CalibrationResult& result, const CalibrateReport& report,
                                const std::string& to);

}  // namespace kvring
