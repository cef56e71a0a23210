// SPDX-License-Identifier: Apache-2.0
// What the encoder and the calibration of nuq must do alike (kvquant spec 3 and 4): how many outliers a vector has, which
// they are, and the range of the rest. Plain functions of one vector; fp32; no state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvring {

// m(D, f): extremes kept apart on each side of a vector of `dim` elements, floor((f/2) D) + 1, 0 for f = 0 (4.2). At least
// one element always stays.
int OutliersPerSide(int64_t dim, double fraction);

// The members of U and W (4.2): the m largest, then the m smallest of the others, ties to the lower index. Ascending indices
// in out (2m of them, capacity 2m). 2m < x.size().
void SelectExtremes(std::span<const float> x, int m, int32_t* out);

// lo, hi over the elements that are not in `skip` (ascending indices); {0, 0} when none is left.
struct ValueRange {
  float lo = 0.0f, hi = 0.0f;
};
ValueRange RangeWithout(std::span<const float> x, std::span<const int32_t> skip);

// Middle and half width of a range, rounded to fp16 as they are stored; a positive half width never becomes zero (4.2).
struct Normalizer {
  float z = 0.0f, s = 0.0f;
};
Normalizer RoundedNormalizer(ValueRange range);
// The same in fp32, for parameters that live in the tables (keys).
Normalizer ExactNormalizer(float lo, float hi);

// Options of a nuq name that change its tables, in the order of table ids (kernels/codec_tables.h).
struct NuqTableOptions {
  bool post_rope = false;       // keys after RoPE
  bool token_keys = false;      // keys per token instead of per channel
  bool channel_values = false;  // values per channel instead of per token
  bool cap = false;             // keys: at most m outliers a side and token
  bool qnorm = false;           // moments matched (7.3)
  bool fisher = false;          // weights F alone
  bool unweighted = false;      // all weights one
  bool no_sinks = false;        // no token is protected or left out of the calibration
};
NuqTableOptions ParseNuqTableOptions(const std::vector<std::string>& flags);
// "nuq3-1%:post-rope": name (of the registry's row) and the options that are on.
std::string NuqTableId(const std::string& name, const NuqTableOptions& options);

// First tokens of a sequence that stay fp16 and take no part in calibration, unless an option says otherwise.
inline constexpr int kNuqSinks = 4;

}  // namespace kvring
