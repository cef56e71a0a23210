// SPDX-License-Identifier: Apache-2.0
// How sure a difference is: the paired block bootstrap (Künsch 1989). Neighbouring tokens' losses hang together, so whole
// blocks are drawn; both codecs see the same draws.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace kvring {

// 95 % interval of the mean of `differences` (one a token), percentile method, `draws` resamples of blocks of `block` tokens.
// Deterministic. {0, 0} for no tokens.
std::pair<double, double> BootstrapInterval(const std::vector<float>& differences, int block = 128,
                                            int draws = 2000);

}  // namespace kvring
