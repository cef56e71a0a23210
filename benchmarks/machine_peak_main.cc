// SPDX-License-Identifier: Apache-2.0
// Limits of this machine, to be looked at before any other figure: `machine_peak` prints them as JSON.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "benchmarks/machine_peak.h"
#include "benchmarks/run_facts.h"

int main() {
  using namespace kvring;
  nlohmann::ordered_json json;
  for (const auto& [name, value] : RunFacts()) json[name] = value;
  json["fma_flops_core"] = PeakFlops();
  json["bf16_flops_core"] = PeakBf16Flops();
  json["int8_ops_core"] = PeakInt8Ops();
  for (const int megabytes : {16, 64, 256, 1024}) {
    json["read_bytes_per_s_core"][std::to_string(megabytes) + "MB"] =
        PeakReadBytes(int64_t{megabytes} << 20);
  }
  json["read_bytes_per_s_all"] = PeakReadBytesAll(CpuCores());
  std::printf("%s\n", json.dump(1).c_str());
  return 0;
}
