// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/numerics.h"

#include "absl/strings/str_split.h"
#include "kernels/simd_target.h"
#include "runtime/model/weights.h"

namespace kvring {

absl::StatusOr<LinearMath> ParseMath(const std::string& text, const GgufFile& file,
                                     const ModelConfig& config) {
  if (text == "auto") return ChooseLinearMath(FileBlocks(file, config));
  for (const LinearMath math :
       {LinearMath::kF32, LinearMath::kBf16, LinearMath::kInt8, LinearMath::kBlocks}) {
    if (text == LinearMathName(math)) return math;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--math '", text, "' is unknown: use auto, f32, bf16, int8 or blocks"));
}

absl::StatusOr<AttentionForm> ParseAttention(const std::string& math, const std::string& rounding) {
  AttentionForm form;
  if (math != "tile" && math != "int8") {
    return absl::InvalidArgumentError(
        absl::StrCat("--attention-math '", math, "' is unknown: use tile or int8"));
  }
  if (math == "int8") form.math = AttentionMath::kInt8;
  if (rounding.empty()) return form;
  if (form.math != AttentionMath::kInt8) {
    return absl::InvalidArgumentError("--attention-rounding needs --attention-math int8");
  }
  form = {AttentionMath::kPlainInt8, false, false, false};
  for (const auto part : absl::StrSplit(rounding, ',')) {
    bool* const chosen = part == "query"     ? &form.round_query
                         : part == "bias"    ? &form.round_bias
                         : part == "weights" ? &form.round_weights
                                             : nullptr;
    if (chosen != nullptr) {
      *chosen = true;
    } else if (part != "none") {
      return absl::InvalidArgumentError(absl::StrCat(
          "--attention-rounding '", part, "' is unknown: use query, bias, weights or none"));
    }
  }
  return form;
}

std::string NumericsId(LinearMath math, const AttentionForm& attention) {
  if (attention.math == AttentionMath::kTile)
    return absl::StrCat(LinearMathName(math), "/q-f32/p-f32/exp2-poly/", SimdTarget());
  return absl::StrCat(LinearMathName(math), attention.round_query ? "/q-int8" : "/q-f32",
                      attention.round_bias ? "" : "/bias-f32",
                      attention.round_weights ? "/p-u8" : "/p-f32", "/exp2-poly/",
                      attention.math == AttentionMath::kPlainInt8 ? "plain/" : "", SimdTarget());
}

}  // namespace kvring
