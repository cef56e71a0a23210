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
// rope: [layers], outlive the codec. tables: of a calibration file, for codecs that need them.
absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(
    const std::string& spec, const KvShape& shape, const std::vector<const RopeTable*>& rope,
    std::shared_ptr<const CodecTables> tables = nullptr);

// The codec is known and its table row says that it needs calibrated tables. False for unknown names.
bool NeedsCalibration(const std::string& spec);

// The codec that `spec` means for sequences of a declared context: tc adapts itself to its sequence ("tc3" is "tc3:adapt") from
// kAdaptContext tokens on, where the state is under 2 % of the pages, unless :adapt or :static is given. Other specs as they are.
inline constexpr int64_t kAdaptContext = 16384;
std::string SpecForContext(const std::string& spec, int64_t context);

// Splits a list: ';' always separates, ',' where no value has "k=" or "v=".
std::vector<std::string> SplitCodecList(const std::string& list);

}  // namespace kvring
