// SPDX-License-Identifier: Apache-2.0
// Before a long read: what the cache's codec costs this model, on the first tokens of the very prompt (F22). A model whose
// keys are unlike what the codec was made for shows here, in seconds, and not after an hour.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/eval/evaluator.h"

namespace kvring {

enum class SelfCheckMode : uint8_t { kAuto, kOn, kOff };
absl::StatusOr<SelfCheckMode> ParseSelfCheck(const std::string& word);

// Tokens that are looked at: beyond the prefix of every codec (128), and cheap.
inline constexpr int64_t kSelfCheckTokens = 512;
// With kAuto, prompts from here on: the check reads the tokens twice, so it stays below 7 % of the reading.
inline constexpr int64_t kSelfCheckPrompt = 16384;

struct SelfCheckResult {
  int64_t tokens = 0;  // 0: not run (lossless codec, short prompt, or not asked for)
  double kl = 0;       // mean KL(f16 || codec) of the next token, everything read packed, nats
  double bound = 0;    // what is large for a codec of so many bits
  std::string warning() const;  // "" when the cost is below the bound
};

// 0.05 nats at 4 bits and more; four times that for each bit less, as the error of a quantizer grows by 6 dB a bit.
double SelfCheckBound(int bits);

// options: weights, numerics, tables, threads of this process; codecs, window and rule are set here. prompt: its ids.
absl::StatusOr<SelfCheckResult> SelfCheck(SelfCheckMode mode, EvalOptions options,
                                          const std::string& codec,
                                          const std::vector<int32_t>& prompt);

}  // namespace kvring
