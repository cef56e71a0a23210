// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/trellis_ref.h"

#include <algorithm>
#include <cmath>

#include "kernels/codec/trellis_tables.h"

namespace kvring {

int64_t TrellisBytesRef(const std::vector<uint8_t>& bits, int group_rows) {
  int64_t bytes = 0;
  for (size_t first = 0; first < bits.size(); first += group_rows) {
    int sum = 0;
    for (size_t i = first; i < std::min(bits.size(), first + group_rows); ++i) sum += bits[i];
    bytes += (sum + 7) / 8;
  }
  return bytes;
}

double TrellisNumberRef(const std::vector<uint8_t>& bits, int group_rows, const uint8_t* stream,
                        int i) {
  const int first = i / group_rows * group_rows;
  const std::vector<uint8_t> before(bits.begin(), bits.begin() + first);
  const uint8_t* const own = stream + TrellisBytesRef(before, group_rows);
  int window = 0, bit = 0;
  for (int c = first; c <= i; ++c) {
    for (int b = 0; b < bits[c]; ++b, ++bit)  // a new bit comes in at the top, the oldest goes
      window = window >> 1 | (own[bit / 8] >> (bit % 8) & 1) << 6;
  }
  const TrellisTable& table = TrellisTables()[bits[i]];
  return static_cast<double>(table.unit) * table.level[window];
}

double TrellisLeastErrorRef(const std::vector<uint8_t>& bits, const std::vector<float>& weight,
                            const std::vector<float>& z, double gain) {
  std::vector<double> least(128, HUGE_VAL);
  least[0] = 0.0;
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i] == 0) continue;
    const TrellisTable& table = TrellisTables()[bits[i]];
    std::vector<double> next(128, HUGE_VAL);
    for (int window = 0; window < 128; ++window) {
      for (int code = 0; code < 1 << bits[i]; ++code) {
        const int after = window >> bits[i] | code << (7 - bits[i]);
        const double rest = z[i] - gain * table.unit * table.level[after];
        next[after] = std::min(next[after], least[window] + weight[i] * rest * rest);
      }
    }
    least = next;
  }
  return *std::min_element(least.begin(), least.end());
}

}  // namespace kvring
