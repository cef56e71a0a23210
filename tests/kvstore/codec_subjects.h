// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/kvstore/shard_cluster.h"

namespace kvring {

// The mock in all its forms, then every row of the codec table with heads of 64 numbers; of calibrated rows those forms
// that differ to a shard.
const std::vector<Subject>& AllSubjects();
const Subject& NamedSubject(
    const std::string& name);  // "rot4", "nuq2-1%:paper"; aborts when there is none

}  // namespace kvring
