// SPDX-License-Identifier: Apache-2.0
#include "tests/support/nuq_tables.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "kernels/codec/nuq_rules.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

struct Rows {
  int64_t tokens = 0, width = 0;
  std::vector<float> x;  // [tokens][width]
  const float* Row(int64_t t) const { return &x[t * width]; }
};

struct Thresholds {
  std::vector<float> lo, hi;  // [width]
};

struct Job {
  KvShape shape;
  const CodecRow* row = nullptr;
  NuqTableOptions options;
  Rows k, v;
  Thresholds k_limits, v_limits;
  // Thresholds grow by this share a layer.
  float layer_step = 0.0f;
};

int PerSide(int64_t dim, double fraction) {
  return fraction == 0 ? 0 : static_cast<int>(std::floor(fraction / 2 * dim)) + 1;
}

// Interpolated quantiles f/2 and 1 - f/2 of every column (3.2).
Thresholds QuantilesOf(const Rows& rows, double fraction) {
  Thresholds limits;
  std::vector<float> column(rows.tokens);
  const auto quantile = [&](double p) {
    const double at = p * (rows.tokens - 1);
    const int64_t below = std::min<int64_t>(static_cast<int64_t>(at), rows.tokens - 1);
    const int64_t above = std::min(below + 1, rows.tokens - 1);
    return static_cast<float>(column[below] + (at - below) * (column[above] - column[below]));
  };
  for (int64_t c = 0; c < rows.width; ++c) {
    for (int64_t t = 0; t < rows.tokens; ++t) column[t] = rows.Row(t)[c];
    std::sort(column.begin(), column.end());
    limits.lo.push_back(quantile(fraction / 2));
    limits.hi.push_back(quantile(1 - fraction / 2));
  }
  return limits;
}

// The inliers in normalized units, each by its own channel.
std::vector<float> InUnitsOfChannels(const Rows& rows, const Thresholds& limits) {
  std::vector<float> u;
  for (int64_t i = 0; i < rows.tokens * rows.width; ++i) {
    const float lo = limits.lo[i % rows.width], hi = limits.hi[i % rows.width];
    if (hi > lo && rows.x[i] >= lo && rows.x[i] <= hi)
      u.push_back((rows.x[i] - (hi + lo) / 2) / ((hi - lo) / 2));
  }
  return u;
}

// The same by token: m extremes a side of the whole row left out, ranges over `dim` neighbours (4.2).
std::vector<float> InUnitsOfTokens(const Rows& rows, int64_t dim, double fraction) {
  std::vector<float> u;
  const int m = PerSide(rows.width, fraction);
  std::vector<int64_t> order(rows.width);
  for (int64_t t = 0; t < rows.tokens; ++t) {
    const float* const x = rows.Row(t);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] < x[b]; });
    std::sort(order.begin() + m, order.end() - m);
    for (auto at = order.begin() + m; at != order.end() - m;) {
      const auto end =
          std::find_if(at, order.end() - m, [&](int64_t c) { return c / dim != *at / dim; });
      float lo = x[*at], hi = lo;
      for (auto c = at; c != end; ++c) lo = std::min(lo, x[*c]), hi = std::max(hi, x[*c]);
      for (; at != end; ++at) {
        if (hi > lo) u.push_back((x[*at] - (hi + lo) / 2) / ((hi - lo) / 2));
      }
    }
  }
  return u;
}

// Unweighted means of Lloyd's iteration from the quantiles; an even grid where they do not ascend (too few values).
// Of many numbers some thousands, evenly picked, say the same.
std::vector<float> Means(std::vector<float> u, int count) {
  const size_t step = u.size() / 4096 + 1;
  for (size_t i = 0; i * step < u.size(); ++i) u[i] = u[i * step];
  u.resize((u.size() + step - 1) / step);
  std::sort(u.begin(), u.end());
  std::vector<double> sums(u.size() + 1, 0.0);
  for (size_t i = 0; i < u.size(); ++i) sums[i + 1] = sums[i] + u[i];
  std::vector<float> even(count), c;
  for (int j = 0; j < count; ++j) even[j] = (2 * j + 1.0f) / count - 1;
  if (u.empty()) return even;
  for (int j = 0; j < count; ++j) c.push_back(u[(2 * j + 1) * u.size() / (2 * count)]);
  for (int round = 0; round < 40; ++round) {
    size_t begin = 0;
    for (int j = 0; j < count; ++j) {
      const float edge = j + 1 < count ? (c[j] + c[j + 1]) / 2 : INFINITY;
      const size_t end = std::upper_bound(u.begin() + begin, u.end(), edge) - u.begin();
      if (end > begin) c[j] = static_cast<float>((sums[end] - sums[begin]) / (end - begin));
      begin = end;
    }
  }
  for (int j = 1; j < count; ++j) {
    if (c[j] <= c[j - 1]) return even;
  }
  return c;
}

// Outliers of each head by token: of channels beyond the limits, or the m extremes a side of every token.
std::vector<double> MeanOutliers(const Rows& rows, const Thresholds* limits, double fraction,
                                 int heads) {
  const int64_t dim = rows.width / heads;
  std::vector<double> mean(heads,
                           limits == nullptr ? 2.0 * PerSide(rows.width, fraction) / heads : 0.0);
  if (fraction == 0 || limits == nullptr) return mean;
  for (int64_t i = 0; i < rows.tokens * rows.width; ++i) {
    const int64_t c = i % rows.width;
    if (rows.x[i] < limits->lo[c] || rows.x[i] > limits->hi[c]) mean[c / dim] += 1.0 / rows.tokens;
  }
  // Of few rows the count is a poor estimate: what the name says is the least.
  for (double& m : mean) m = std::max(m, fraction * dim);
  return mean;
}

// Slots of a page: the mean and four deviations, never more than the head can have; some more on odd heads, so that sizes
// differ.
float SlotsFor(double mean, int64_t block, int64_t dim, int head, int most_of_token) {
  if (mean == 0) return 0.0f;
  const double slots = std::ceil(mean * block + 4 * std::sqrt(mean * block)) + head % 2;
  return static_cast<float>(std::min<double>(slots, block * std::min<int64_t>(dim, most_of_token)));
}

class Writer {
 public:
  Writer(const Job& job, CodecTables* tables)
      : job_(job), tables_(tables), id_(NuqTableId(job.row->name, job.options)) {}

  void Write() {
    const double f = job_.row->outliers;
    const bool k_channel = !job_.options.token_keys, v_channel = job_.options.channel_values;
    Set("block_tokens", {1}, {static_cast<float>(job_.shape.block_tokens)});
    if (k_channel) WriteLimits("k", job_.k_limits);
    if (v_channel) WriteLimits("v", job_.v_limits);
    WriteCentroids("k_cent", "k_decode",
                   k_channel ? InUnitsOfChannels(job_.k, job_.k_limits)
                             : InUnitsOfTokens(job_.k, job_.shape.dk, f));
    WriteCentroids("v_cent", "v_decode",
                   v_channel ? InUnitsOfChannels(job_.v, job_.v_limits)
                             : InUnitsOfTokens(job_.v, job_.shape.dv, f));
    WriteCentroids("v_cent_token", "v_decode_token",
                   v_channel ? InUnitsOfChannels(job_.v, job_.v_limits)
                             : InUnitsOfTokens(job_.v, job_.v.width, f));
    WriteSlots("k", job_.k, k_channel ? &job_.k_limits : nullptr, job_.shape.dk);
    WriteSlots("v", job_.v, v_channel ? &job_.v_limits : nullptr, job_.shape.dv);
  }

 private:
  void Set(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    tables_->tensors[id_ + "/" + name] = {std::move(shape), std::move(values)};
  }

  void WriteLimits(const std::string& side, const Thresholds& limits) {
    const int64_t width = limits.lo.size();
    std::vector<float> lo, hi;
    for (int layer = 0; layer < job_.shape.layers; ++layer) {
      for (int64_t c = 0; c < width; ++c) {
        lo.push_back(limits.lo[c] * (1 + layer * job_.layer_step));
        hi.push_back(limits.hi[c] * (1 + layer * job_.layer_step));
      }
    }
    Set(side + "_lo", {job_.shape.layers, width}, lo);
    Set(side + "_hi", {job_.shape.layers, width}, hi);
  }

  // One datatype for all layers. Q-Norm's a and o are made up: what matters is that decoded values differ from the codes' own.
  void WriteCentroids(const std::string& name, const std::string& decode,
                      const std::vector<float>& u) {
    const std::vector<float> one = Means(u, 1 << job_.row->bits);
    std::vector<float> all, decoded;
    for (int layer = 0; layer < job_.shape.layers; ++layer) {
      for (const float c : one) all.push_back(c), decoded.push_back(1.02f * c + 0.004f);
    }
    const int64_t count = one.size();
    Set(name, {job_.shape.layers, count}, all);
    if (job_.options.qnorm) Set(decode, {job_.shape.layers, count}, decoded);
  }

  void WriteSlots(const std::string& side, const Rows& rows, const Thresholds* limits,
                  int64_t dim) {
    const int heads = job_.shape.kv_heads;
    const std::vector<double> mean = MeanOutliers(rows, limits, job_.row->outliers, heads);
    // Thresholds alone bound nothing; the cap and values' ranks do.
    const bool ranked = limits == nullptr || (side == "k" && job_.options.cap);
    const int most = ranked ? 2 * PerSide(rows.width, job_.row->outliers) : static_cast<int>(dim);
    std::vector<float> slots, outliers;
    for (int layer = 0; layer < job_.shape.layers; ++layer) {
      for (int h = 0; h < heads; ++h) {
        slots.push_back(SlotsFor(mean[h], job_.shape.block_tokens, dim, h, most));
        outliers.push_back(static_cast<float>(mean[h]));
      }
    }
    Set(side + "_slots", {job_.shape.layers, heads}, slots);
    Set(side + "_outliers", {job_.shape.layers, heads}, outliers);
  }

  const Job& job_;
  CodecTables* tables_;
  std::string id_;
};

// FNV-1a of names and values.
void SetHash(CodecTables* tables) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](uint32_t word) { hash = (hash ^ word) * 0x100000001b3u; };
  for (const auto& [name, table] : tables->tensors) {
    for (const char c : name) add(static_cast<uint8_t>(c));
    for (const float value : table.values) add(std::bit_cast<uint32_t>(value));
  }
  tables->hash = hash;
}

Rows NormalRows(int64_t tokens, int64_t width, uint32_t seed) {
  return {tokens, width, NormalFloats(tokens * width, seed)};
}

// Limits of N(0, 1) as the quantiles of the sample would be if it were large, 5 % apart over the channels.
Thresholds NormalLimits(int64_t width, double fraction) {
  const float quantile = fraction == 0       ? 4.0f
                         : fraction <= 0.001 ? 3.29f
                         : fraction <= 0.005 ? 2.81f
                                             : 2.58f;
  Thresholds limits;
  for (int64_t c = 0; c < width; ++c) {
    limits.lo.push_back(-quantile * (1 + 0.0125f * (c % 5)));
    limits.hi.push_back(quantile * (1 + 0.0125f * ((c + 2) % 5)));
  }
  return limits;
}

}  // namespace

std::shared_ptr<const CodecTables> TestNuqTables(const KvShape& shape,
                                                 const std::vector<std::string>& flags,
                                                 const std::string& only) {
  auto tables = std::make_shared<CodecTables>();
  constexpr int64_t kTokens =
      32;  // of the sample that datatypes are fitted to: thousands of numbers
  Job job{shape, nullptr, ParseNuqTableOptions(flags), {}, {}, {}, {}, 0.01f};
  job.k = NormalRows(kTokens, int64_t{shape.kv_heads} * shape.dk, 71);
  job.v = NormalRows(kTokens, int64_t{shape.kv_heads} * shape.dv, 72);
  for (const CodecRow& row : AllCodecs()) {
    const std::string name = row.name;
    if (!row.calibrated || name.rfind("nuq", 0) != 0 || (!only.empty() && name != only)) continue;
    job.row = &row;
    job.k_limits = NormalLimits(job.k.width, row.outliers);
    job.v_limits = NormalLimits(job.v.width, row.outliers);
    Writer(job, tables.get()).Write();
  }
  SetHash(tables.get());
  return tables;
}

std::shared_ptr<const CodecTables> TestNuqTablesOfRows(const KvShape& shape,
                                                       const std::string& name,
                                                       const std::vector<std::string>& flags,
                                                       const NuqSample& sample) {
  auto tables = std::make_shared<CodecTables>();
  Job job{shape, FindCodec(name), ParseNuqTableOptions(flags), {}, {}, {}, {}, 0.0f};
  const auto rows = [](std::span<const float> x, int64_t width) {
    return Rows{static_cast<int64_t>(x.size()) / width, width, {x.begin(), x.end()}};
  };
  job.k = rows(sample.k, int64_t{shape.kv_heads} * shape.dk);
  job.v = rows(sample.v, int64_t{shape.kv_heads} * shape.dv);
  job.k_limits = QuantilesOf(job.k, job.row->outliers);
  job.v_limits = QuantilesOf(job.v, job.row->outliers);
  Writer(job, tables.get()).Write();
  SetHash(tables.get());
  return tables;
}

std::shared_ptr<const CodecTables> WithNuqTensors(
    const CodecTables& tables, const std::string& id,
    const std::map<std::string, std::vector<float>>& tensors) {
  auto copy = std::make_shared<CodecTables>(tables);
  for (const auto& [name, values] : tensors) {
    CodecTable& table = copy->tensors[id + "/" + name];
    if (table.shape.empty()) table.shape = {static_cast<int64_t>(values.size())};
    table.values = values;
  }
  SetHash(copy.get());
  return copy;
}

}  // namespace kvring
