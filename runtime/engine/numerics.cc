// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/numerics.h"

#include "kernels/simd_target.h"

namespace kvring {

absl::StatusOr<LinearMath> ParseMath(const std::string& text) {
  if (text == "auto") return ChooseLinearMath();
  for (const LinearMath math : {LinearMath::kF32, LinearMath::kBf16, LinearMath::kInt8}) {
    if (text == LinearMathName(math)) return math;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--math '", text, "' is unknown: use auto, f32, bf16 or int8"));
}

std::string NumericsId(LinearMath math) {
  return absl::StrCat(LinearMathName(math), "/q-f32/p-f32/exp2-poly/", SimdTarget());
}

}  // namespace kvring
