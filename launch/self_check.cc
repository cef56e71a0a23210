// SPDX-License-Identifier: Apache-2.0
#include "launch/self_check.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/codec.h"

namespace kvring {
namespace {

// f16 and f32 lose nothing that would need a check.
constexpr int kLosslessBits = 16;

}  // namespace

absl::StatusOr<SelfCheckMode> ParseSelfCheck(const std::string& word) {
  if (word == "auto") return SelfCheckMode::kAuto;
  if (word == "on") return SelfCheckMode::kOn;
  if (word == "off") return SelfCheckMode::kOff;
  return absl::InvalidArgumentError(
      absl::StrCat("--self-check '", word, "' is unknown: use auto, on or off"));
}

double SelfCheckBound(int bits) { return 0.05 * std::pow(4.0, std::max(0, 4 - bits)); }

std::string SelfCheckResult::warning() const {
  if (tokens == 0 || kl <= bound) return "";
  return absl::StrFormat(
      "the cache costs %.3f nats a token on the first %d tokens of this prompt, more than the %.2f "
      "that a codec of its width may: take more bits, or calibrated tables of this model",
      kl, tokens, bound);
}

absl::StatusOr<SelfCheckResult> SelfCheck(SelfCheckMode mode, EvalOptions options,
                                          const std::string& codec,
                                          const std::vector<int32_t>& prompt) {
  SelfCheckResult result;
  const CodecRow* const row = FindCodec(codec.substr(0, codec.find(':')));
  const int64_t have = static_cast<int64_t>(prompt.size());
  const bool wanted =
      mode == SelfCheckMode::kOn || (mode == SelfCheckMode::kAuto && have >= kSelfCheckPrompt);
  if (!wanted || row == nullptr || row->bits >= kLosslessBits || have < 2) return result;
  options.codecs = {codec};
  options.rule.kind = Visibility::kTeacher;
  options.window = std::min(have, kSelfCheckTokens);
  options.windows = 1;
  KVRING_ASSIGN_OR_RETURN(const std::vector<EvalRow> rows, Evaluate(options, prompt, nullptr));
  result.tokens = options.window;
  result.kl = rows.front().kl;
  result.bound = SelfCheckBound(row->bits);
  return result;
}

}  // namespace kvring
