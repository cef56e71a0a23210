// SPDX-License-Identifier: Apache-2.0
// How programs of google-benchmark begin here: one thread, the facts of the run in the JSON.
#pragma once

#include <benchmark/benchmark.h>

#include "benchmarks/run_facts.h"
#include "kernels/parallel.h"

namespace kvring {

// False when a flag is unknown: it has been named.
inline bool StartBenchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return false;
  SetThreads(1);
  for (const auto& [name, value] : RunFacts()) benchmark::AddCustomContext(name, value);
  return true;
}

}  // namespace kvring
