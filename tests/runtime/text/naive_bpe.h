// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kvring {

// BPE as its definition says, in cubic time: join the pair of the best merge, leftmost first, until none is left.
// `merges` are "left right" without spelling of bytes; returns the pieces.
std::vector<std::string> NaiveBpe(const std::string& word, const std::vector<std::string>& merges);

}  // namespace kvring
