// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/kvstore/shard_cluster.h"

namespace kvring {

// The mock in all its forms, then every row of the codec table with heads of 64 numbers.
const std::vector<Subject>& AllSubjects();

}  // namespace kvring
