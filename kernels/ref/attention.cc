// SPDX-License-Identifier: Apache-2.0
// Attention in double, key by key: the definition that the fast form is compared with. A row's older sums (partial on
// entry) are merged in at the end.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvring {
namespace {

bool PageReadExact(const AttendArgs& args, const PageView& page, int64_t position) {
  const CodecTraits& traits = args.codec->traits();
  if (page.packed == nullptr) return true;
  if (traits.lossless || page.exact_k == nullptr) return false;
  return BlockIsExact(args.rule, traits, args.block_tokens, position, page.begin, args.chunk_begin);
}

// One page as keys [tokens][dk] and values [tokens][dv] in the domain of the query that reads it.
struct Rows {
  std::vector<float> k, v;
};

Rows ExactRows(const AttendArgs& args, const PageView& page) {
  Rows rows{std::vector<float>(page.tokens * args.dk), std::vector<float>(page.tokens * args.dv)};
  for (int t = 0; t < page.tokens; ++t) {
    float* k = rows.k.data() + t * args.dk;
    for (int i = 0; i < args.dk; ++i) k[i] = HalfToFloat(page.exact_k[t * page.exact_k_stride + i]);
    for (int i = 0; i < args.dv; ++i)
      rows.v[t * args.dv + i] = HalfToFloat(page.exact_v[t * page.exact_v_stride + i]);
    if (args.codec->traits().key_domain != KeyDomain::kPreRope) continue;
    std::vector<float> angles(2 * args.rope->planes());
    RopeAngles(*args.rope, page.begin + t, angles.data());
    RopeRotate(*args.rope, angles.data(), k);
  }
  return rows;
}

Rows PackedRows(const AttendArgs& args, const PageView& page) {
  const int block = args.block_tokens;
  std::vector<float> kt(block * args.dk);
  Rows rows{std::vector<float>(block * args.dk), std::vector<float>(block * args.dv)};
  args.codec->DecodeKeys(args.layer, args.head, args.state, page, kt.data());
  args.codec->DecodeValues(args.layer, args.head, args.state, page, rows.v.data());
  for (int t = 0; t < block; ++t) {
    for (int i = 0; i < args.dk; ++i) rows.k[t * args.dk + i] = kt[i * block + t];
  }
  return rows;
}

struct RowState {
  std::vector<double> logits;
  std::vector<const float*> values;
};

double Dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// m, l and o of the row's keys, together with what the partial already holds.
void Fold(const RowState& row, const SoftmaxPartial& partial, int64_t r) {
  if (row.logits.empty()) return;
  const double old_l = partial.l[r];
  double m = old_l == 0 ? -std::numeric_limits<double>::infinity() : partial.m[r];
  for (double s : row.logits) m = std::max(m, s);
  const double alpha = old_l == 0 ? 0 : std::exp2(partial.m[r] - m);
  double l = old_l * alpha;
  for (double s : row.logits) l += std::exp2(s - m);
  for (int64_t i = 0; i < partial.dv; ++i) {
    double o = alpha == 0 ? 0 : alpha * partial.o[r * partial.dv + i];
    for (size_t j = 0; j < row.logits.size(); ++j)
      o += std::exp2(row.logits[j] - m) * row.values[j][i];
    partial.o[r * partial.dv + i] = static_cast<float>(o);
  }
  // Rounding m would scale l and o by up to 2^(ulp(m)/2): they are given for the rounded m.
  const double correction = std::exp2(m - static_cast<double>(static_cast<float>(m)));
  for (int64_t i = 0; i < partial.dv; ++i) {
    partial.o[r * partial.dv + i] = static_cast<float>(partial.o[r * partial.dv + i] * correction);
  }
  partial.m[r] = static_cast<float>(m);
  partial.l[r] = static_cast<float>(l * correction);
}

}  // namespace

void AttendPagesRef(const AttendArgs& args, const SoftmaxPartial& partial) {
  std::vector<Rows> exact, packed;
  for (const PageView& page : args.pages) {
    exact.push_back(page.exact_k != nullptr ? ExactRows(args, page) : Rows{});
    packed.push_back(page.packed != nullptr ? PackedRows(args, page) : Rows{});
  }
  for (size_t r = 0; r < args.positions.size(); ++r) {
    RowState row;
    for (size_t i = 0; i < args.pages.size(); ++i) {
      const PageView& page = args.pages[i];
      const bool is_exact = PageReadExact(args, page, args.positions[r]);
      const Rows& rows = is_exact ? exact[i] : packed[i];
      const float* q =
          (is_exact || args.packed_q == nullptr ? args.raw_q : args.packed_q) + r * args.dk;
      for (int t = 0; t < page.tokens && page.begin + t <= args.positions[r]; ++t) {
        row.logits.push_back(Dot(q, rows.k.data() + t * args.dk, args.dk));
        row.values.push_back(rows.v.data() + t * args.dv);
      }
    }
    Fold(row, partial, static_cast<int64_t>(r));
  }
}

}  // namespace kvring
