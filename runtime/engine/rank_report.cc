// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/rank_report.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_format.h"

namespace kvring {
namespace {

constexpr int kFields = 10,
              kLayerFields = 3;  // words of a packed report: its numbers, then each layer's

const LayerDrift* WorstLayer(const std::vector<LayerDrift>& layers) {
  const auto less = [](const LayerDrift& a, const LayerDrift& b) {
    return a.saturated_share() < b.saturated_share();
  };
  const auto worst = std::max_element(layers.begin(), layers.end(), less);
  return worst == layers.end() ? nullptr : &*worst;
}

// The number behind `key` in a file of "Key: number kB" lines, in bytes; -1 when absent.
int64_t KilobyteField(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t value = 0;
    if (word == key && file >> value) return value * 1024;
  }
  return -1;
}

// A file that holds one number; -1 when it is absent or says "max".
int64_t NumberIn(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : -1;
}

}  // namespace

void LayerDrift::Add(const LayerDrift& other) {
  saturated += other.saturated;
  overflow += other.overflow;
  values += other.values;
}

std::vector<int64_t> PackReport(const RankReport& r) {
  std::vector<int64_t> words = {r.rank,          r.tokens,    r.kv_bytes,       r.page_bytes,
                                r.kv_peak_bytes, r.rss_bytes, r.peak_rss_bytes, r.saturated,
                                r.overflow,      r.clamped};
  for (const LayerDrift& layer : r.layers)
    words.insert(words.end(), {layer.saturated, layer.overflow, layer.values});
  return words;
}

RankReport UnpackReport(const std::vector<int64_t>& words) {
  RankReport r;
  int64_t* const fields[kFields] = {
      &r.rank,      &r.tokens,         &r.kv_bytes,  &r.page_bytes, &r.kv_peak_bytes,
      &r.rss_bytes, &r.peak_rss_bytes, &r.saturated, &r.overflow,   &r.clamped};
  for (int i = 0; i < kFields; ++i) *fields[i] = words[i];
  for (size_t i = kFields; i + kLayerFields <= words.size(); i += kLayerFields)
    r.layers.push_back({words[i], words[i + 1], words[i + 2]});
  return r;
}

std::vector<LayerDrift> SumDrift(const std::vector<RankReport>& reports) {
  std::vector<LayerDrift> sum;
  for (const RankReport& report : reports) {
    sum.resize(std::max(sum.size(), report.layers.size()));
    for (size_t i = 0; i < report.layers.size(); ++i) sum[i].Add(report.layers[i]);
  }
  return sum;
}

LayerDrift TotalDrift(const std::vector<LayerDrift>& layers) {
  LayerDrift total;
  for (const LayerDrift& layer : layers) total.Add(layer);
  return total;
}

std::string DescribeDrift(const std::vector<LayerDrift>& layers) {
  const LayerDrift total = TotalDrift(layers);
  const LayerDrift* const worst = WorstLayer(layers);
  if (worst == nullptr || total.saturated == 0) return "";
  return absl::StrFormat(
      "%.4f %% of the values saturate (%.4f %% for want of a slot), most in layer %d: %.4f %%",
      100 * total.saturated_share(), 100 * total.overflow_share(), worst - layers.data(),
      100 * worst->saturated_share());
}

std::string DriftWarning(const std::vector<LayerDrift>& layers, const std::string& codec) {
  const LayerDrift* const worst = WorstLayer(layers);
  if (worst == nullptr || worst->saturated_share() <= kDriftBound) return "";
  return absl::StrFormat(
      "%s: %s, above %.1f %%: this text is not like what the codec was made for; calibrate on text "
      "like it, or use another codec",
      codec, DescribeDrift(layers), 100 * kDriftBound);
}

int64_t ProcessRssBytes() {
  return std::max<int64_t>(0, KilobyteField("/proc/self/status", "VmRSS:"));
}

int64_t ProcessPeakRssBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int64_t AvailableMemoryBytes() {
  int64_t available = KilobyteField("/proc/meminfo", "MemAvailable:");
  if (available < 0) available = std::numeric_limits<int64_t>::max();
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max"),
                used = NumberIn("/sys/fs/cgroup/memory.current");
  if (limit > 0 && used >= 0) available = std::min(available, std::max<int64_t>(0, limit - used));
  return available;
}

}  // namespace kvring
