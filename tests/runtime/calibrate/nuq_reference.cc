// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/calibrate/nuq_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "kernels/half.h"

namespace kvring {
namespace {

float Rounded(float x) { return HalfToFloat(FloatToHalfSaturated(x)); }

WindowRows MakeRows(const KvShape& shape, int64_t rows, std::mt19937& random) {
  std::normal_distribution<float> normal;
  WindowRows out;
  out.rows = rows;
  const auto fill = [&](int dim, std::vector<float>& x, std::vector<float>& g) {
    const int width = shape.kv_heads * dim;
    for (int64_t t = 0; t < rows; ++t) {
      for (int c = 0; c < width; ++c) {
        const float spread = 0.25f * static_cast<float>(1 + c % 5);
        const float tail = random() % 50 == 0 ? 6.0f : 1.0f;
        const float sink = t < 2 ? 40.0f : 1.0f;
        x.push_back(sink * tail * spread * normal(random) + 0.5f * static_cast<float>(c % 3));
        g.push_back(1e-4f * normal(random) * std::exp(2.0f * normal(random)));
      }
    }
  };
  fill(shape.dk, out.k, out.dk);
  fill(shape.dv, out.v, out.dv);
  return out;
}

// Rows of one window in the domain of the rule, and gradients alike.
struct Rows {
  std::vector<std::vector<float>> x, g;  // [rows][width]
};

std::vector<std::vector<float>> Cut(const std::vector<float>& x, int width) {
  std::vector<std::vector<float>> rows;
  for (size_t i = 0; i < x.size(); i += width) {
    rows.emplace_back(x.begin() + static_cast<int64_t>(i),
                      x.begin() + static_cast<int64_t>(i) + width);
  }
  return rows;
}

void Rotate(const RopeTable& table, int heads, int dim, std::vector<std::vector<float>>& rows) {
  std::vector<float> angles(table.planes() * 2);
  for (size_t t = 0; t < rows.size(); ++t) {
    RopeAngles(table, static_cast<int64_t>(t), angles.data());
    for (int h = 0; h < heads; ++h) RopeRotate(table, angles.data(), &rows[t][h * dim]);
  }
}

Rows RowsOf(const SyntheticText& text, const WindowRows& window, int layer,
            const ReferenceRule& rule) {
  const int dim = rule.keys ? text.shape.dk : text.shape.dv;
  Rows rows{Cut(rule.keys ? window.k : window.v, text.shape.kv_heads * dim),
            Cut(rule.keys ? window.dk : window.dv, text.shape.kv_heads * dim)};
  if (rule.keys && rule.options.post_rope) {
    Rotate(text.rope[layer], text.shape.kv_heads, dim, rows.x);
    Rotate(text.rope[layer], text.shape.kv_heads, dim, rows.g);
  }
  for (auto& row : rows.x) {
    for (float& x : row) x = Rounded(x);
  }
  return rows;
}

float Quantile(std::vector<float> x, double p) {
  std::sort(x.begin(), x.end());
  const double at = p * static_cast<double>(x.size() - 1);
  const auto below = static_cast<size_t>(std::min(at, static_cast<double>(x.size() - 1)));
  const size_t above = std::min(below + 1, x.size() - 1);
  return static_cast<float>(x[below] +
                            (at - static_cast<double>(below)) * (double{x[above]} - x[below]));
}

// Channels of a row that are kept apart.
std::set<int> OutliersOfRow(const std::vector<float>& x, const ReferenceRule& rule,
                            const ReferenceSide& side) {
  std::set<int> outliers;
  if (rule.fraction == 0) return outliers;
  const int width = static_cast<int>(x.size());
  const int m = static_cast<int>(std::floor(rule.fraction / 2 * width)) + 1;
  std::vector<int> order(width);
  std::iota(order.begin(), order.end(), 0);
  if (!rule.by_channel) {
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
    outliers.insert(order.begin(), order.begin() + m);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return std::pair(outliers.count(a), x[a]) < std::pair(outliers.count(b), x[b]);
    });
    outliers.insert(order.begin(), order.begin() + m);
    return outliers;
  }
  const auto t = [&](int c) {
    return (x[c] - (side.hi[c] + side.lo[c]) / 2) / ((side.hi[c] - side.lo[c]) / 2);
  };
  std::vector<int> above, below;
  for (int c = 0; c < width; ++c) {
    if (x[c] > side.hi[c]) above.push_back(c);
    if (x[c] < side.lo[c]) below.push_back(c);
  }
  if (rule.options.cap) {
    std::stable_sort(above.begin(), above.end(), [&](int a, int b) { return t(a) > t(b); });
    std::stable_sort(below.begin(), below.end(), [&](int a, int b) { return t(a) < t(b); });
    above.resize(std::min<size_t>(above.size(), m));
    below.resize(std::min<size_t>(below.size(), m));
  }
  outliers.insert(above.begin(), above.end());
  outliers.insert(below.begin(), below.end());
  return outliers;
}

void AddElements(const std::vector<float>& x, const std::vector<float>& g,
                 const std::set<int>& outliers, int heads, const ReferenceRule& rule,
                 ReferenceSide& side) {
  const int width = static_cast<int>(x.size()), dim = width / heads;
  const int piece = rule.over_all_heads ? width : dim;
  for (int c = 0; c < width; ++c) {
    if (outliers.count(c) != 0) continue;
    float lo = x[c], hi = x[c];
    if (rule.by_channel) {
      lo = side.lo[c];
      hi = side.hi[c];
    } else {
      for (int i = c / piece * piece; i < (c / piece + 1) * piece; ++i) {
        if (outliers.count(i) != 0) continue;
        lo = std::min(lo, x[i]);
        hi = std::max(hi, x[i]);
      }
    }
    float z = 0.5f * (hi + lo), s = 0.5f * (hi - lo);
    if (!rule.by_channel) z = Rounded(z), s = Rounded(s);
    if (s == 0) continue;
    const double u = std::clamp((double{x[c]} - z) / s, -1.0, 1.0);
    const double fisher = double{g[c]} * g[c];
    side.elements.push_back({u, rule.options.unweighted ? 1.0
                                : rule.options.fisher   ? fisher
                                                        : fisher * s * s});
  }
}

}  // namespace

std::vector<const RopeTable*> SyntheticText::RopePointers() const {
  std::vector<const RopeTable*> pointers;
  for (const RopeTable& table : rope) pointers.push_back(&table);
  return pointers;
}

absl::Status SyntheticText::Feed(CodecCalibrator& calibrator, const std::vector<int>& order,
                                 const std::vector<int>& gradients) const {
  const auto at = [](const std::vector<int>& of, size_t i) {
    return of.empty() ? i : static_cast<size_t>(of[i]);
  };
  for (size_t i = 0; i < windows.size(); ++i) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      const WindowRows& w = windows[at(order, i)][layer];
      calibrator.ObserveForward({layer, w.rows, w.k.data(), w.v.data(), nullptr, nullptr});
    }
  }
  KVRING_RETURN_IF_ERROR(calibrator.FinishForward());
  for (size_t i = 0; i < windows.size(); ++i) {
    for (int layer = shape.layers; layer-- > 0;) {
      const WindowRows& w = windows[at(order, i)][layer];
      const WindowRows& g = windows[at(gradients.empty() ? order : gradients, i)][layer];
      calibrator.ObserveBackward({layer, w.rows, w.k.data(), w.v.data(), g.dk.data(), g.dv.data()});
    }
  }
  return absl::OkStatus();
}

SyntheticText MakeSyntheticText(int windows, uint32_t seed) {
  SyntheticText text;
  text.shape = {
      .layers = 2, .query_heads = 6, .kv_heads = 3, .dk = 32, .dv = 48, .block_tokens = 16};
  text.window = 104;  // six blocks and a half
  for (int layer = 0; layer < text.shape.layers; ++layer) {
    text.rope.push_back(MakeRopeTable(RopePairing::kHalfSplit, 32, 32, 10000.0, {}));
  }
  std::mt19937 random(seed);
  for (int w = 0; w < windows; ++w) {
    text.windows.emplace_back();
    for (int layer = 0; layer < text.shape.layers; ++layer) {
      text.windows.back().push_back(MakeRows(text.shape, text.window, random));
    }
  }
  return text;
}

ReferenceSide ReferenceOf(const SyntheticText& text, int layer, const ReferenceRule& rule) {
  ReferenceSide side;
  const int heads = text.shape.kv_heads;
  const int dim = rule.keys ? text.shape.dk : text.shape.dv;
  const size_t sinks = rule.options.no_sinks ? 0 : kNuqSinks;
  std::vector<Rows> windows;
  for (const auto& window : text.windows) {
    windows.push_back(RowsOf(text, window[layer], layer, rule));
  }
  for (int c = 0; rule.by_channel && c < heads * dim; ++c) {
    std::vector<float> column;
    for (const Rows& rows : windows) {
      for (size_t t = sinks; t < rows.x.size(); ++t) column.push_back(rows.x[t][c]);
    }
    side.lo.push_back(Quantile(column, rule.fraction / 2));
    side.hi.push_back(Quantile(column, 1 - rule.fraction / 2));
  }
  side.block_outliers.resize(heads);
  const size_t block = text.shape.block_tokens;
  for (const Rows& rows : windows) {
    std::vector<int> open(heads);
    for (size_t t = 0; t < rows.x.size(); ++t) {
      if (t % block == 0) open.assign(heads, 0);
      if (t >= sinks) {
        const std::set<int> outliers = OutliersOfRow(rows.x[t], rule, side);
        for (const int c : outliers) ++open[c / dim];
        AddElements(rows.x[t], rows.g[t], outliers, heads, rule, side);
      }
      if ((t + 1) % block != 0) continue;
      for (int h = 0; h < heads; ++h) side.block_outliers[h].push_back(open[h]);
    }
  }
  return side;
}

}  // namespace kvring
