// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/packed_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/codec/lloyd_max.h"
#include "kernels/cpu/exp2.h"

namespace kvring {
namespace {

constexpr int kSlots = 64;
constexpr float kSlack = 8.0f;  // what a logit may pass the row's reference by before that moves

double Step(float x, bool round) { return round ? std::nearbyint(x) : x; }

// 16 lanes, lane i + lane i + 8 and so on.
float TreeSum(std::array<float, 16> lanes) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

// Coefficients [begin, end) of a key that are one integer sum.
struct Term {
  int begin, end;
  int scale, step;  // of the key's scales, of the query's steps
};

// What rot and tc have in common.
struct Form {
  int dk = 0, dv = 0;
  const RopeTable* rope = nullptr;
  const float* mean = nullptr;
  float unit = 1;               // of levels
  std::vector<float> key_unit;  // [dk] what the query is multiplied by before it is rounded
  std::vector<float>
      value_step;  // [dv] what a level of each coefficient stands for, but for `unit`
  std::vector<Term> terms;
  int value_rows = 0;  // coefficients of a value that have a scale together
};

Form FormOf(const RotPageRef& rot) {
  Form form;
  form.dk = rot.dk, form.dv = rot.dv;
  form.rope = rot.rope, form.mean = rot.mean;
  form.unit = LloydMaxTable(rot.bits).unit;
  form.key_unit.assign(rot.dk, 1.0f);
  form.value_step.assign(rot.dv, 1.0f);
  form.terms = {{0, rot.dk, 0, 0}};
  form.value_rows = rot.dv;
  return form;
}

// tc's first 16 coefficients, the others of the first gain, and those of every further gain.
Form FormOf(const TcPageRef& tc) {
  Form form;
  form.dk = tc.key.dim, form.dv = tc.value.dim;
  form.rope = tc.rope, form.mean = tc.key.mean;
  for (int i = 0; i < form.dk; ++i)
    form.key_unit.push_back(static_cast<float>(TcUnitRef(tc.key_bits[i / 8])));
  const float* const deviation =
      tc.state == nullptr ? nullptr : tc.state + form.dk * form.dk + form.dk + form.dv * form.dv;
  for (int i = 0; i < form.dv; ++i) {
    const float scale = deviation == nullptr ? std::sqrt(tc.value.lambda[i]) : deviation[i];
    form.value_step.push_back(static_cast<float>(TcUnitRef(tc.value_bits[i / 8])) * scale);
  }
  form.terms = {{0, 16, 0, 0}, {16, std::min(64, form.dk), 0, 1}};
  for (int i = 64; i < form.dk; i += 64)
    form.terms.push_back({i, std::min(i + 64, form.dk), i / 64, 1});
  form.value_rows = 64;
  return form;
}

// A query in steps: integers where its parts are rounded.
struct Query {
  std::vector<double> q;        // [dk]
  std::array<float, 2> step{};  // of q
  std::vector<float> re, im;    // [planes] of the bias, in steps of z_step
  float z_step = 0, constant = 0;
};

Query MakeQuery(const Form& form, bool round, const float* packed_q, const float* raw_q) {
  Query query;
  std::array<float, 2> most{}, inverse{};
  std::vector<float> units(form.dk);
  for (const Term& term : form.terms) {
    for (int i = term.begin; i < term.end; ++i) {
      units[i] = packed_q[i] * form.key_unit[i];
      most[term.step] = std::max(most[term.step], std::fabs(units[i]));
    }
  }
  for (int k = 0; k < 2; ++k) {
    inverse[k] = most[k] >= 1e-30f ? 127.0f / most[k] : 0.0f;
    query.step[k] = most[k] / 127.0f;
  }
  for (const Term& term : form.terms)
    for (int i = term.begin; i < term.end; ++i)
      query.q.push_back(Step(units[i] * inverse[term.step], round));
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
  std::vector<int> k, v;                // [64][dk], [64][dv]
  std::vector<float> k_scale, v_scale;  // [scales][64]
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
  return levels;
}

Levels ReadPage(const TcPageRef& form, const PageView& page) {
  Levels levels;
  const int k_scales = (form.key.dim + 63) / 64 * kSlots;
  const int v_scales = (form.value.dim + 63) / 64 * kSlots;
  const uint8_t* const v_part =
      page.packed + k_scales +
      kSlots * std::accumulate(form.key_bits.begin(), form.key_bits.end(), int64_t{0});
  for (int t = 0; t < kSlots; ++t) {
    for (int i = 0; i < form.key.dim; ++i)
      levels.k.push_back(TcLevelRef(form.key_bits, page.packed, kSlots, t, i, true));
    for (int i = 0; i < form.value.dim; ++i)
      levels.v.push_back(TcLevelRef(form.value_bits, v_part, kSlots, t, i, false));
  }
  for (int i = 0; i < k_scales; ++i) levels.k_scale.push_back(ScaleValue(page.packed[i]));
  for (int i = 0; i < v_scales; ++i) levels.v_scale.push_back(ScaleValue(v_part[i]));
  return levels;
}

// What the bias needs of a page, and the bias of one slot.
class PageBias {
 public:
  PageBias(const Form& form, const PageTurns& turns, const PageView& page, bool round)
      : turns_(turns), round_(round), planes_(form.rope->planes()), turn_(2 * turns.stride()) {
    turns.Turn({&page.begin, 1}, turn_.data());
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
    const double sum = round_ ? Rounded(query, slot) : Exact(query, slot);
    return std::fma(static_cast<float>(sum), query.z_step, query.constant);
  }

 private:
  double Exact(const Query& query, int slot) const {
    double sum = 0;
    for (int p = 0; p < planes_; ++p) {
      const double* const angle = exact_.data() + 2 * (slot * planes_ + p);
      sum += 32767.0 * (query.re[p] * angle[0] + query.im[p] * angle[1]);
    }
    return sum;
  }

  // A plane at the page's middle.
  std::array<float, 2> Turned(const Query& query, int p) const {
    const float c = turn_[p], s = turn_[turns_.stride() + p];
    return {std::fma(query.im[p], s, query.re[p] * c), std::fma(-query.re[p], s, query.im[p] * c)};
  }

  double Rounded(const Query& query, int slot) const {
    const bool late = slot >= kSlots / 2;
    const int k = late ? slot - kSlots / 2 : kSlots / 2 - 1 - slot;
    double sum = 0;
    const auto add = [&](int function, float even, float odd) {
      sum += Step(even, true) * turns_.Even(function, k);
      sum += Step(odd, true) * (late ? 1 : -1) * turns_.Odd(function, k);
    };
    const int folded = turns_.folded(), count = turns_.stride() - folded;
    std::array<std::array<float, 16>, 4> sums{};  // of the folded planes, by lanes
    for (int p = 0; p < planes_; ++p) {
      const auto [even, odd] = Turned(query, p);
      if (p < folded) add(p, even, odd);
      for (int i = 0; p >= folded && i < 4; ++i) {
        float& lane = sums[i][p % 16];
        lane = std::fma(i < 2 ? even : odd, turns_.fold()[i * count + p - folded], lane);
      }
    }
    if (count == 0) return sum;
    for (int i = 0; i < 2; ++i) add(folded + i, TreeSum(sums[i]), TreeSum(sums[2 + i]));
    return sum;
  }

  const PageTurns& turns_;
  bool round_;
  int planes_;
  std::vector<float> turn_;
  std::vector<double> exact_;
};

float Logit(const Form& form, const Levels& levels, const Query& query, int slot, float bias) {
  float logit = bias;
  for (const Term& term : form.terms) {
    double sum = 0;  // exact when the query is rounded
    for (int i = term.begin; i < term.end; ++i) sum += query.q[i] * levels.k[slot * form.dk + i];
    const float scale = levels.k_scale[term.scale * kSlots + slot];
    logit = std::fma(static_cast<float>(sum), scale * (form.unit * query.step[term.step]), logit);
  }
  return logit;
}

// Sums of values: where they go, and the logit that they are relative to.
struct ValueSums {
  float *o, *m;
};

void AddValues(const Form& form, const Levels& levels, const std::array<float, kSlots>& p,
               int first, int end, bool round, float alpha, float* o) {
  for (int begin = 0; begin < form.dv; begin += form.value_rows) {
    std::array<float, kSlots> weight{};
    const float* const scale = levels.v_scale.data() + begin / form.value_rows * kSlots;
    float most = 0;
    for (int t = first; t < end; ++t) {
      weight[t] = p[t] * scale[t];
      most = std::max(most, weight[t]);
    }
    const bool any = most >= 0x1p-100f;
    const float inverse = any ? 255.0f / most : 0.0f;
    const float step = any ? most / 255.0f * form.unit : 0.0f;
    std::array<double, kSlots> units{};
    for (int t = first; t < end; ++t) units[t] = Step(weight[t] * inverse, round);
    for (int i = begin; i < std::min(begin + form.value_rows, form.dv); ++i) {
      double total = 0;
      for (int t = first; t < end; ++t) total += units[t] * levels.v[t * form.dv + i];
      o[i] = std::fma(static_cast<float>(total), step * form.value_step[i], alpha * o[i]);
    }
  }
}

// One row over the slots [first, end) of a page. values: null members, in the row itself.
void AddPage(const Form& form, const Levels& levels, const std::array<float, kSlots>& logits,
             int first, int end, bool round, const SoftmaxPartial& row, const ValueSums& values) {
  const float old_m = *row.l == 0.0f ? -std::numeric_limits<float>::infinity() : *row.m;
  if (*row.l == 0.0f) std::fill_n(row.o, form.dv, 0.0f);
  const float most = *std::max_element(logits.begin() + first, logits.begin() + end);
  const float m = most > old_m + kSlack ? most : old_m;
  std::array<float, kSlots> p{};
  std::array<float, 16> sum{};
  for (int t = first; t < end; ++t) {
    p[t] = Exp2(logits[t] - m);
    sum[t % 16] += p[t];
  }
  const float alpha = Exp2(old_m - m);
  const bool apart = values.o != nullptr;
  AddValues(form, levels, p, first, end, round, apart ? Exp2(*values.m - m) : alpha,
            apart ? values.o : row.o);
  if (apart) {
    *values.m = m;
    for (int i = 0; i < form.dv; ++i) row.o[i] *= alpha;
  }
  *row.m = m;
  *row.l = *row.l * alpha + TreeSum(sum);
}

void AttendRow(const Form& form, const AttendArgs& args, const PageView& page, const Levels& levels,
               const PageBias& bias, int64_t r, int end, const SoftmaxPartial& row,
               const ValueSums& values) {
  const Query query =
      MakeQuery(form, args.form.round_query, args.packed_q + r * form.dk, args.raw_q + r * form.dk);
  std::array<float, kSlots> logits{};
  for (int t = page.sinks; t < end; ++t) {
    const float shift = form.mean == nullptr ? 0.0f : bias.Of(query, t);
    logits[t] = Logit(form, levels, query, t, shift);
  }
  AddPage(form, levels, logits, page.sinks, end, args.form.round_weights, row, values);
}

template <class PageForm>
void AttendAll(const PageForm& page_form, const PageTurns& turns, const AttendArgs& args,
               const SoftmaxPartial& partial, float* o, float* o_m) {
  const Form form = FormOf(page_form);
  AttendScratch scratch;
  scratch.kt.resize(kSlots * form.dk + 16), scratch.v.resize(kSlots * form.dv + 16);
  for (const PageView& page : args.pages) {
    const Levels levels = ReadPage(page_form, page);
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
      if (end <= page.sinks) continue;
      ValueSums values{nullptr, nullptr};
      if (o != nullptr) values = {o + r * form.dv, o_m + r};
      AttendRow(form, args, page, levels, bias, r, end, partial.Slice(r, 1), values);
    }
  }
}

}  // namespace

void AttendPackedRef(const RotPageRef& form, const PageTurns& turns, const AttendArgs& args,
                     const SoftmaxPartial& partial) {
  AttendAll(form, turns, args, partial, nullptr, nullptr);
}

void AttendPackedRef(const TcPageRef& form, const PageTurns& turns, const AttendArgs& args,
                     const SoftmaxPartial& partial, float* o, float* o_m) {
  const bool turned = form.state != nullptr;
  AttendAll(form, turns, args, partial, turned ? o : nullptr, turned ? o_m : nullptr);
}

void FinishTcPackedRef(const TcPageRef& form, const float* o, const float* o_m,
                       const SoftmaxPartial& partial) {
  const int dv = form.value.dim, dk = form.key.dim;
  const float* const basis = form.state + dk * dk + dk;
  for (int64_t r = 0; r < partial.rows; ++r) {
    if (o_m[r] == -std::numeric_limits<float>::infinity()) continue;
    const float factor = Exp2(o_m[r] - partial.m[r]);
    for (int j = 0; j < dv; ++j) {
      float sum = 0;
      for (int i = 0; i < dv; ++i) sum += o[r * dv + i] * basis[j * dv + i];
      partial.o[r * dv + j] += factor * sum;
    }
  }
}

}  // namespace kvring
