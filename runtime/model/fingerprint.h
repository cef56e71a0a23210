// SPDX-License-Identifier: Apache-2.0
// Which model a file holds, for artifacts that belong to one model.
#pragma once

#include "runtime/base/hash.h"
#include "runtime/model/gguf.h"

namespace kvring {

// XXH3-128 of every tensor's name, shape, type and up to 64 KiB at its beginning and end. Metadata does not count: a file
// with another chat template is the same model. DATA_LOSS when the file has become shorter since Open.
absl::StatusOr<Hash128Value> ModelFingerprint(const GgufFile& file);

}  // namespace kvring
