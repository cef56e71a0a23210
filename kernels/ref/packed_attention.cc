// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/codec/lloyd_max.h"
#include "kernels/codec/page_turns.h"
#include "kernels/cpu/exp2.h"
#include "kernels/ref/codec_ref.h"

namespace kvring {
namespace {

constexpr int kSlots = 64;

int Nearest(float x) { return static_cast<int>(std::nearbyint(x)); }

// 16 lanes, lane i + lane i + 8 and so on.
float TreeSum(std::array<float, 16> lanes) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

// A query as integers.
struct Query {
  std::vector<int> q;         // [dk]
  float step = 0;             // of q
  std::vector<float> re, im;  // [planes] of the bias, in steps of z_step
  float z_step = 0, constant = 0;
};

Query MakeQuery(const RotPageRef& form, const float* packed_q, const float* raw_q) {
  Query query;
  float most = 0;
  for (int i = 0; i < form.dk; ++i) most = std::max(most, std::fabs(packed_q[i]));
  const float inverse = most >= 1e-30f ? 127.0f / most : 0.0f;
  for (int i = 0; i < form.dk; ++i) query.q.push_back(Nearest(packed_q[i] * inverse));
  query.step = most / 127.0f;
  if (form.mean == nullptr) return query;
  const RopeTable& rope = *form.rope;
  std::array<float, 16> sum{};
  for (int p = 0; p < rope.planes(); ++p) {
    const int a = rope.First(p), b = rope.Second(p);
    const float* mu = form.mean;
    query.re.push_back((raw_q[a] * mu[a] + raw_q[b] * mu[b]) * rope.attention_scale);
    query.im.push_back((raw_q[b] * mu[a] - raw_q[a] * mu[b]) * rope.attention_scale);
    sum[p % 16] += std::sqrt(std::fma(query.re[p], query.re[p], query.im[p] * query.im[p]));
  }
  const float total = TreeSum(sum);
  const float scale = total >= 1e-30f ? 32767.0f / total : 0.0f;
  query.z_step = total / (32767.0f * 32767.0f);
  for (float& x : query.re) x *= scale;
  for (float& x : query.im) x *= scale;
  for (int i = 2 * rope.planes(); i < form.dk; ++i) query.constant += raw_q[i] * form.mean[i];
  return query;
}

// Integers of one page.
struct Levels {
  std::vector<int> k, v;  // [64][dk], [64][dv]
  std::vector<float> k_scale, v_scale;
  float unit = 1;
};

Levels ReadPage(const RotPageRef& form, const PageView& page) {
  const RotCodesRef codes = RotPageCodes(form, page);
  Levels levels;
  const LloydMax& table = LloydMaxTable(form.bits);
  const auto level = [&](int code) {
    return form.bits == 8 ? static_cast<int8_t>(code) : int{table.level[code]};
  };
  for (const int code : codes.k) levels.k.push_back(level(code));
  for (const int code : codes.v) levels.v.push_back(level(code));
  for (const uint8_t e : codes.k_scale) levels.k_scale.push_back(ScaleValue(e));
  for (const uint8_t e : codes.v_scale) levels.v_scale.push_back(ScaleValue(e));
  levels.unit = table.unit;
  return levels;
}

float Bias(const Query& query, const PageTurns& turns, const float* turn, int slot) {
  int64_t sum = 0;
  for (size_t p = 0; p < query.re.size(); ++p) {
    const float c = turn[p], s = turn[turns.stride() + p];
    const int re = Nearest(std::fma(query.im[p], s, query.re[p] * c));
    const int im = Nearest(std::fma(-query.re[p], s, query.im[p] * c));
    const bool late = slot >= kSlots / 2;
    const int k = late ? slot - kSlots / 2 : kSlots / 2 - 1 - slot;
    const int plane = static_cast<int>(p);
    sum += int64_t{re} * turns.Cosine(plane, k) + int64_t{late ? im : -im} * turns.Sine(plane, k);
  }
  return std::fma(static_cast<float>(sum), query.z_step, query.constant);
}

float Logit(const RotPageRef& form, const Levels& levels, const Query& query, int slot,
            float bias) {
  int64_t sum = 0;
  for (int i = 0; i < form.dk; ++i) sum += query.q[i] * levels.k[slot * form.dk + i];
  return std::fma(static_cast<float>(sum), levels.k_scale[slot] * (levels.unit * query.step), bias);
}

// One row over the slots [first, end) of a page.
void AddPage(const RotPageRef& form, const Levels& levels, const std::array<float, kSlots>& logits,
             int first, int end, const SoftmaxPartial& row) {
  const float old_m = *row.l == 0.0f ? -std::numeric_limits<float>::infinity() : *row.m;
  if (*row.l == 0.0f) std::fill_n(row.o, form.dv, 0.0f);
  float m = old_m;
  for (int t = first; t < end; ++t) m = std::max(m, logits[t]);
  std::array<float, kSlots> weight{};
  std::array<float, 16> sum{};
  float most = 0;
  for (int t = first; t < end; ++t) {
    const float p = Exp2(logits[t] - m);
    sum[t % 16] += p;
    weight[t] = p * levels.v_scale[t];
    most = std::max(most, weight[t]);
  }
  const bool any = most >= 0x1p-100f;
  const float inverse = any ? 255.0f / most : 0.0f;
  const float step = any ? most / 255.0f * levels.unit : 0.0f;
  const float alpha = Exp2(old_m - m);
  for (int i = 0; i < form.dv; ++i) {
    int64_t total = 0;
    for (int t = first; t < end; ++t)
      total += Nearest(weight[t] * inverse) * levels.v[t * form.dv + i];
    row.o[i] = std::fma(static_cast<float>(total), step, alpha * row.o[i]);
  }
  *row.m = m;
  *row.l = *row.l * alpha + TreeSum(sum);
}

}  // namespace

void AttendPackedRef(const RotPageRef& form, const AttendArgs& args,
                     const SoftmaxPartial& partial) {
  const PageTurns turns(*form.rope, kSlots);
  std::vector<float> turn(2 * turns.stride());
  AttendScratch scratch;
  for (const PageView& page : args.pages) {
    const Levels levels = ReadPage(form, page);
    turns.Turn(page.begin, turn.data());
    for (int64_t r = 0; r < static_cast<int64_t>(args.positions.size()); ++r) {
      const int end =
          static_cast<int>(std::min<int64_t>(page.tokens, args.positions[r] - page.begin + 1));
      if (page.sinks > 0 && end > 0) {
        PageView sinks = page;
        sinks.exact_k = page.sink_k, sinks.exact_v = page.sink_v;
        sinks.exact_k_stride = page.sink_k_stride, sinks.exact_v_stride = page.sink_v_stride;
        sinks.tokens = std::min(page.sinks, page.tokens);
        scratch.kt.resize(kSlots * form.dk + 16), scratch.v.resize(kSlots * form.dv + 16);
        AttendExactRows(args, sinks, r, r + 1, scratch, partial);
      }
      if (end <= page.sinks) continue;
      const Query query = MakeQuery(form, args.packed_q + r * form.dk, args.raw_q + r * form.dk);
      std::array<float, kSlots> logits{};
      for (int t = page.sinks; t < end; ++t) {
        const float bias = form.mean == nullptr ? 0.0f : Bias(query, turns, turn.data(), t);
        logits[t] = Logit(form, levels, query, t, bias);
      }
      AddPage(form, levels, logits, page.sinks, end, partial.Slice(r, 1));
    }
  }
}

}  // namespace kvring
