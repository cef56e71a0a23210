// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/machine_peak_dot.h"

namespace kvring {

double Bf16DotLoop(int64_t, float*) { return 0; }
double Int8DotLoop(int64_t, float*) { return 0; }

}  // namespace kvring
