// SPDX-License-Identifier: Apache-2.0
// Codec names as people type them: "rot4", "nf4:post-rope", "rot3:no-mean:g64", lists "f16,nf4" and "a;b".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "runtime/base/status.h"

namespace kvring {

// A codec for this shape, or INVALID_ARGUMENT naming the unknown part and listing what exists (F13: or the head size).
// rope: [layers], outlive the codec.
absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(const std::string& spec,
                                                       const KvShape& shape,
                                                       const std::vector<const RopeTable*>& rope);

// Splits a list: ';' always separates, ',' where no value has "k=" or "v=".
std::vector<std::string> SplitCodecList(const std::string& list);

}  // namespace kvring
