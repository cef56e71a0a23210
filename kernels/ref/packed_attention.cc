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

double Step(float x, bool round) { return round ? std::nearbyint(x) : x; }

// 16 lanes, lane i + lane i + 8 and so on.
float TreeSum(std::array<float, 16> lanes) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

// A query in steps: integers where its parts are rounded.
struct Query {
  std::vector<double> q;      // [dk]
  float step = 0;             // of q
  std::vector<float> re, im;  // [planes] of the bias, in steps of z_step
  float z_step = 0, constant = 0;
};

Query MakeQuery(const RotPageRef& form, bool round, const float* packed_q, const float* raw_q) {
  Query query;
  float most = 0;
  for (int i = 0; i < form.dk; ++i) most = std::max(most, std::fabs(packed_q[i]));
  const float inverse = most >= 1e-30f ? 127.0f / most : 0.0f;
  for (int i = 0; i < form.dk; ++i) query.q.push_back(Step(packed_q[i] * inverse, round));
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

// What the bias needs of a page, and the bias of one slot.
class PageBias {
 public:
  PageBias(const RotPageRef& form, const PageTurns& turns, const PageView& page, bool round)
      : turns_(turns), round_(round), planes_(form.rope->planes()), turn_(2 * turns.stride()) {
    turns.Turn(page.begin, turn_.data());
    if (round) return;
    for (int t = 0; t < kSlots; ++t) {
      for (int p = 0; p < planes_; ++p) {
        const double angle = static_cast<double>(page.begin + t) * form.rope->inv_freq[p];
        exact_.push_back(std::cos(angle));
        exact_.push_back(std::sin(angle));
      }
    }
  }

  float Of(const Query& query, int slot) const {
    double sum = 0;
    for (int p = 0; p < planes_; ++p) sum += Plane(query, p, slot);
    return std::fma(static_cast<float>(sum), query.z_step, query.constant);
  }

 private:
  double Plane(const Query& query, int p, int slot) const {
    if (!round_) {
      const double* const angle = exact_.data() + 2 * (slot * planes_ + p);
      return 32767.0 * (query.re[p] * angle[0] + query.im[p] * angle[1]);
    }
    const float c = turn_[p], s = turn_[turns_.stride() + p];
    const double re = Step(std::fma(query.im[p], s, query.re[p] * c), true);
    const double im = Step(std::fma(-query.re[p], s, query.im[p] * c), true);
    const bool late = slot >= kSlots / 2;
    const int k = late ? slot - kSlots / 2 : kSlots / 2 - 1 - slot;
    return re * turns_.Cosine(p, k) + (late ? im : -im) * turns_.Sine(p, k);
  }

  const PageTurns& turns_;
  bool round_;
  int planes_;
  std::vector<float> turn_;
  std::vector<double> exact_;
};

float Logit(const RotPageRef& form, const Levels& levels, const Query& query, int slot,
            float bias) {
  double sum = 0;  // exact when the query is rounded
  for (int i = 0; i < form.dk; ++i) sum += query.q[i] * levels.k[slot * form.dk + i];
  return std::fma(static_cast<float>(sum), levels.k_scale[slot] * (levels.unit * query.step), bias);
}

// One row over the slots [first, end) of a page.
void AddPage(const RotPageRef& form, const Levels& levels, const std::array<float, kSlots>& logits,
             int first, int end, bool round, const SoftmaxPartial& row) {
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
  std::array<double, kSlots> units{};
  for (int t = first; t < end; ++t) units[t] = Step(weight[t] * inverse, round);
  for (int i = 0; i < form.dv; ++i) {
    double total = 0;
    for (int t = first; t < end; ++t) total += units[t] * levels.v[t * form.dv + i];
    row.o[i] = std::fma(static_cast<float>(total), step, alpha * row.o[i]);
  }
  *row.m = m;
  *row.l = *row.l * alpha + TreeSum(sum);
}

void AttendRow(const RotPageRef& form, const AttendArgs& args, const PageView& page,
               const Levels& levels, const PageBias& bias, int64_t r, int end,
               const SoftmaxPartial& row) {
  const Query query =
      MakeQuery(form, args.form.round_query, args.packed_q + r * form.dk, args.raw_q + r * form.dk);
  std::array<float, kSlots> logits{};
  for (int t = page.sinks; t < end; ++t) {
    const float shift = form.mean == nullptr ? 0.0f : bias.Of(query, t);
    logits[t] = Logit(form, levels, query, t, shift);
  }
  AddPage(form, levels, logits, page.sinks, end, args.form.round_weights, row);
}

}  // namespace

void AttendPackedRef(const RotPageRef& form, const PageTurns& turns, const AttendArgs& args,
                     const SoftmaxPartial& partial) {
  AttendScratch scratch;
  scratch.kt.resize(kSlots * form.dk + 16), scratch.v.resize(kSlots * form.dv + 16);
  for (const PageView& page : args.pages) {
    const Levels levels = ReadPage(form, page);
    const PageBias bias(form, turns, page, args.form.round_bias);
    for (int64_t r = 0; r < static_cast<int64_t>(args.positions.size()); ++r) {
      const int end =
          static_cast<int>(std::min<int64_t>(page.tokens, args.positions[r] - page.begin + 1));
      if (page.sinks > 0 && end > 0) {
        PageView sinks = page;
        sinks.exact_k = page.sink_k, sinks.exact_v = page.sink_v;
        sinks.exact_k_stride = page.sink_k_stride, sinks.exact_v_stride = page.sink_v_stride;
        sinks.tokens = std::min(page.sinks, page.tokens);
        AttendExactRows(args, sinks, r, r + 1, scratch, partial);
      }
      if (end > page.sinks) AttendRow(form, args, page, levels, bias, r, end, partial.Slice(r, 1));
    }
  }
}

}  // namespace kvring
