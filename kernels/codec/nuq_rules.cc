// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/nuq_rules.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/half.h"

namespace kvring {
namespace {

// The best `m` of the elements seen, best first. Elements come in ascending index and pass an equal one only from behind,
// so that ties fall to the lower index. Once full, an element of a common distribution rarely enters: O(size) in all.
template <bool kLargest>
class BestOf {
 public:
  explicit BestOf(int m) : m_(m) {
    values_.reserve(m);
    indices_.reserve(m);
  }

  void AddRange(std::span<const float> x, int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i < end && static_cast<int>(values_.size()) < m_; ++i)
      Insert(x[i], static_cast<int32_t>(i));
    if (i == end) return;
    float bar = values_.back();
    for (; i < end; ++i) {
      if (!Beats(x[i], bar)) continue;
      Insert(x[i], static_cast<int32_t>(i));
      bar = values_.back();
    }
  }

  const std::vector<int32_t>& indices() const { return indices_; }

 private:
  static bool Beats(float a, float b) { return kLargest ? a > b : a < b; }

  // Behind its equals; a full list loses its last.
  void Insert(float value, int32_t index) {
    if (static_cast<int>(values_.size()) == m_) {
      values_.pop_back();
      indices_.pop_back();
    }
    values_.push_back(value);
    indices_.push_back(index);
    for (size_t at = values_.size() - 1; at > 0 && Beats(value, values_[at - 1]); --at) {
      std::swap(values_[at], values_[at - 1]);
      std::swap(indices_[at], indices_[at - 1]);
    }
  }

  int m_;
  std::vector<float> values_;
  std::vector<int32_t> indices_;
};

// Calls visit(begin, end) for every run of indices below `size` between those of `skip` (ascending).
template <class Visit>
void ForEachRun(int64_t size, std::span<const int32_t> skip, const Visit& visit) {
  int64_t begin = 0;
  for (const int32_t at : skip) {
    if (at > begin) visit(begin, int64_t{at});
    begin = int64_t{at} + 1;
  }
  if (begin < size) visit(begin, size);
}

struct OptionName {
  const char* flag;
  bool NuqTableOptions::*on;
};
constexpr OptionName kOptionNames[] = {
    {"post-rope", &NuqTableOptions::post_rope},
    {"token-keys", &NuqTableOptions::token_keys},
    {"channel-values", &NuqTableOptions::channel_values},
    {"cap", &NuqTableOptions::cap},
    {"qnorm", &NuqTableOptions::qnorm},
    {"fisher", &NuqTableOptions::fisher},
    {"unweighted", &NuqTableOptions::unweighted},
    {"no-sinks", &NuqTableOptions::no_sinks},
};

}  // namespace

int OutliersPerSide(int64_t dim, double fraction) {
  if (fraction <= 0.0 || dim < 1) return 0;
  // A whole product must not fall below itself: 0.0005 * 4000 is 2.
  const int64_t m =
      static_cast<int64_t>(std::floor(fraction / 2 * static_cast<double>(dim) + 1e-9)) + 1;
  return static_cast<int>(std::min(m, (dim - 1) / 2));
}

void SelectExtremes(std::span<const float> x, int m, int32_t* out) {
  if (m == 0) return;
  BestOf<true> upper(m);
  upper.AddRange(x, 0, static_cast<int64_t>(x.size()));
  std::copy(upper.indices().begin(), upper.indices().end(), out);
  std::sort(out, out + m);
  BestOf<false> lower(m);
  ForEachRun(static_cast<int64_t>(x.size()), {out, static_cast<size_t>(m)},
             [&](int64_t begin, int64_t end) { lower.AddRange(x, begin, end); });
  std::copy(lower.indices().begin(), lower.indices().end(), out + m);
  std::sort(out, out + 2 * m);
}

ValueRange RangeWithout(std::span<const float> x, std::span<const int32_t> skip) {
  bool any = false;
  ValueRange range;
  ForEachRun(static_cast<int64_t>(x.size()), skip, [&](int64_t begin, int64_t end) {
    float lo = any ? range.lo : x[begin], hi = any ? range.hi : x[begin];
    for (int64_t i = begin; i < end; ++i) {
      lo = x[i] < lo ? x[i] : lo;
      hi = x[i] > hi ? x[i] : hi;
    }
    range = {lo, hi};
    any = true;
  });
  return range;
}

Normalizer ExactNormalizer(float lo, float hi) {
  // Zero is added so that -0 and +0 make the same bytes.
  return {0.5f * (hi + lo) + 0.0f, 0.5f * (hi - lo) + 0.0f};
}

Normalizer RoundedNormalizer(ValueRange range) {
  const Normalizer exact = ExactNormalizer(range.lo, range.hi);
  Normalizer rounded{HalfToFloat(FloatToHalfSaturated(exact.z)) + 0.0f,
                     HalfToFloat(FloatToHalfSaturated(exact.s))};
  if (rounded.s == 0.0f && range.hi > range.lo) rounded.s = 0x1p-24f;
  return rounded;
}

NuqTableOptions ParseNuqTableOptions(const std::vector<std::string>& flags) {
  NuqTableOptions options;
  for (const OptionName& name : kOptionNames) {
    options.*name.on = std::find(flags.begin(), flags.end(), name.flag) != flags.end();
  }
  return options;
}

std::string NuqTableId(const std::string& name, const NuqTableOptions& options) {
  std::string id = name;
  for (const OptionName& option : kOptionNames) {
    if (options.*option.on) id += std::string(":") + option.flag;
  }
  return id;
}

}  // namespace kvring
