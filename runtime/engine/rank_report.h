// SPDX-License-Identifier: Apache-2.0
// What a rank says of itself when a plan asks for it.
#pragma once

#include <cstdint>

namespace kvring {

struct RankReport {
  int64_t rank = 0;
  int64_t tokens = 0;    // tokens of live sequences that are stored here
  int64_t kv_bytes = 0;  // allocated for them
  int64_t kv_peak_bytes = 0;
  int64_t rss_bytes = 0;  // of the process: ranks that are threads share one
  int64_t peak_rss_bytes = 0;
  int64_t saturated = 0;  // codec values out of range
  int64_t clamped = 0;    // rows' numbers beyond fp16
};

int64_t ProcessRssBytes();       // resident now
int64_t ProcessPeakRssBytes();   // the largest so far
int64_t AvailableMemoryBytes();  // of this host, or of the control group that limits it

}  // namespace kvring
