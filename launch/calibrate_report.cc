// SPDX-License-Identifier: Apache-2.0
#include "launch/calibrate_report.h"

#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "launch/json_file.h"
#include "launch/progress.h"
#include "launch/result_json.h"

namespace kvring {
namespace {

using Json = nlohmann::ordered_json;

void PrintHeldOut(const HeldOut& held_out) {
  std::printf("tc on text that the calibration did not read (%d x %s tokens, plain form):\n",
              static_cast<int>(held_out.windows), Grouped(held_out.window).c_str());
  for (const HeldOutPoint& p : held_out.points)
    std::printf("  tc@%-4g %6.3f bits   KL %.4f   nats %+.4f\n", p.rate, p.bits, p.kl, p.nats);
}

}  // namespace

CalibrateReport MeasureCalibrate(const std::string& file, absl::Time start, double held_out_s) {
  CalibrateReport report{file, absl::ToDoubleSeconds(absl::Now() - start), held_out_s};
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  report.file_bytes = error ? 0 : static_cast<int64_t>(size);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  report.peak_rss_bytes = int64_t{usage.ru_maxrss} * 1024;
  return report;
}

void PrintCalibrateReport(const CalibrationResult& result, const CalibrateReport& report) {
  const CalibrationInfo& info = result.calibration.info;
  for (const std::string& note : result.notes) std::printf("note: %s\n", note.c_str());
  if (info.held_out) PrintHeldOut(*info.held_out);
  const std::string peak = HumanBytes(report.peak_rss_bytes);
  if (info.update) {
    std::printf("tc updated from %d windows of %s tokens, in %.0f s, %s at most\n",
                static_cast<int>(info.update->windows), Grouped(info.update->window).c_str(),
                report.seconds, peak.c_str());
  } else {
    std::printf(
        "%d codecs from %d windows of %s tokens, %.4f nats a token, in %.0f s, %s at most\n",
        static_cast<int>(info.codecs.size()), static_cast<int>(info.windows),
        Grouped(info.window).c_str(), info.loss, report.seconds, peak.c_str());
  }
  std::printf("%s (%s): %s\n", report.file.c_str(), HumanBytes(report.file_bytes).c_str(),
              absl::StrJoin(info.codecs, ", ").c_str());
}

absl::Status WriteCalibrateJson(const CalibrationResult& result, const CalibrateReport& report,
                                const std::string& to) {
  const CalibrationInfo& info = result.calibration.info;
  Json json = {{"file", report.file},
               {"model_hash", info.model_hash},
               {"text_hash", info.text_hash},
               {"tables_hash", absl::StrFormat("%016x", result.calibration.tables->hash)},
               {"codecs", info.codecs},
               {"windows", info.windows},
               {"window", info.window},
               {"seed", info.seed},
               {"loss", info.loss},
               {"math", "f32"},
               {"seconds", report.seconds},
               {"forward_s", result.forward_s},
               {"backward_s", result.backward_s},
               {"fit_s", result.fit_s},
               {"held_out_s", report.held_out_s},
               {"bytes", report.file_bytes},
               {"calibrator_bytes", result.calibrator_bytes},
               {"peak_rss_bytes", report.peak_rss_bytes},
               {"notes", result.notes}};
  AddOptionalInfo(info, json);
  return WriteTextFile(to, json.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace kvring
