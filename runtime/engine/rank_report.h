// SPDX-License-Identifier: Apache-2.0
// What a rank says of itself when a plan asks for it, and the drift that the reports of all ranks show together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvring {

// What the packed form of one layer could not represent, of live sequences.
struct LayerDrift {
  int64_t saturated = 0;  // codec values out of range
  int64_t overflow = 0;   // outliers that found no slot; also part of `saturated`
  int64_t values =
      0;  // stored values of codecs that lose something: both are shares of it (sinks count here)

  double saturated_share() const {
    return values > 0 ? static_cast<double>(saturated) / values : 0;
  }
  double overflow_share() const { return values > 0 ? static_cast<double>(overflow) / values : 0; }
  void Add(const LayerDrift& other);
};

struct RankReport {
  int64_t rank = 0;
  int64_t tokens = 0;      // tokens of live sequences that are stored here
  int64_t kv_bytes = 0;    // allocated for them
  int64_t page_bytes = 0;  // of kv_bytes: pages
  int64_t kv_peak_bytes = 0;
  int64_t rss_bytes = 0;  // of the process: ranks that are threads share one
  int64_t peak_rss_bytes = 0;
  int64_t saturated = 0;  // codec values out of range
  int64_t overflow = 0;   // outliers that found no slot; also part of `saturated`
  int64_t clamped = 0;    // rows' numbers beyond fp16
  std::vector<LayerDrift> layers;
};

// A report as bytes of one size on all ranks of a job, and back.
std::vector<int64_t> PackReport(const RankReport& report);
RankReport UnpackReport(const std::vector<int64_t>& words);

// Of all ranks, by layer; of all layers.
std::vector<LayerDrift> SumDrift(const std::vector<RankReport>& reports);
LayerDrift TotalDrift(const std::vector<LayerDrift>& layers);

// Above this share of saturated values in any layer the data is not like what the codec was made or calibrated for. Tables
// keep at most 1 % of a side's elements apart, and slots are sized for the calibration text with room: on text like it at
// most some 0.1 % of the values find no place. Five times that means that about every second outlier is lost, and with it
// most of what the slots are for.
inline constexpr double kDriftBound = 0.005;

// "0.0123 % of the values saturate (0.0100 % for want of a slot), most in layer 5: 0.2 %"; empty when nothing did.
std::string DescribeDrift(const std::vector<LayerDrift>& layers);
// A warning when a layer is above kDriftBound, else empty. codec: its id, for the message.
std::string DriftWarning(const std::vector<LayerDrift>& layers, const std::string& codec);

int64_t ProcessRssBytes();       // resident now
int64_t ProcessPeakRssBytes();   // the largest so far
int64_t AvailableMemoryBytes();  // of this host, or of the control group that limits it

}  // namespace kvring
