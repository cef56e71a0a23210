// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/text/naive_bpe.h"

#include <algorithm>

namespace kvring {

std::vector<std::string> NaiveBpe(const std::string& word, const std::vector<std::string>& merges) {
  std::vector<std::string> pieces;
  for (const char byte : word) pieces.emplace_back(1, byte);
  while (true) {
    auto best = merges.end();
    size_t at = 0;
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
      const auto merge = std::find(merges.begin(), best, pieces[i] + " " + pieces[i + 1]);
      if (merge != best) best = merge, at = i;
    }
    if (best == merges.end()) return pieces;
    pieces[at] += pieces[at + 1];
    pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

}  // namespace kvring
