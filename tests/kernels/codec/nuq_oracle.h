// SPDX-License-Identifier: Apache-2.0
// kvquant 4 written down a second time, plainly and token by token: what nuq must store of rows, given its tables. Bits are
// comparable with the codec's: a LUT entry is one fp32 product and one fp32 sum, a restored outlier one more sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/codec/nuq_rules.h"
#include "tests/kernels/codec/codec_harness.h"

namespace kvring {

// One stored outlier: block, slot in it, channel over all heads.
struct NuqEntry {
  int64_t block = 0;
  int slot = 0, channel = 0;
  float residual = 0.0f;
};

struct NuqSide {
  std::vector<uint8_t> codes;     // [tokens][heads * dim]
  std::vector<float> dense;       // the same shape: what the code alone decodes to
  std::vector<float> restored;    // the same shape: with residuals
  std::vector<NuqEntry> entries;  // in arrival order
  int64_t saturated = 0, overflow = 0;
};

class NuqOracle {
 public:
  NuqOracle(const CodecCase& c, const CodecTables& tables, int sinks, int64_t first_block = 0)
      : c_(c), row_(*FindCodec(c.name)), tables_(tables), sinks_(sinks), first_block_(first_block) {
    id_ = NuqTableId(c.name, ParseNuqTableOptions(c.flags)) + "/";
    whole_token_ = Has("token") || Has("paper");
    exact_ = Has("exact") || Has("paper");
  }

  // rows [tokens][heads * dk], [tokens][heads * dv], from slot 0 of the first block on.
  NuqSide Keys(const std::vector<float>& rows) const {
    const bool by_token = Has("token-keys");
    return Encode(
        {"k", c_.dk, by_token, Has("cap") && !by_token, Table("k_cent"), Decode("k", "k_decode")},
        rows);
  }
  NuqSide Values(const std::vector<float>& rows) const {
    const std::string scope = whole_token_ && !Has("channel-values") ? "_token" : "";
    return Encode({"v", c_.dv, !Has("channel-values"), false, Table("v_cent" + scope),
                   Decode("v", "v_decode" + scope)},
                  rows);
  }

  const std::vector<float>& Table(const std::string& name) const {
    return tables_.Find(id_ + name)->values;
  }
  bool Has(const std::string& flag) const {
    return std::find(c_.flags.begin(), c_.flags.end(), flag) != c_.flags.end();
  }
  int PerSide(int dim) const { return OutliersPerSide(int64_t{dim} * c_.kv_heads, row_.outliers); }

 private:
  struct Rules {
    std::string side;
    int dim = 0;
    bool by_token = false, capped = false;
    std::vector<float> cent, decode;
  };
  struct Candidate {
    int channel;
    float residual;
  };

  std::vector<float> Decode(const std::string& side, const std::string& name) const {
    if (Has("qnorm")) return Table(name);
    const bool token = name.size() > 8;  // "v_decode_token"
    return Table(side + (token ? "_cent_token" : "_cent"));
  }

  NuqSide Encode(const Rules& rules, const std::vector<float>& rows) const {
    NuqSide out;
    const int width = rules.dim * c_.kv_heads;
    std::vector<int> used(c_.kv_heads, 0);
    for (int64_t t = 0; t * width < static_cast<int64_t>(rows.size()); ++t) {
      if (t % c_.block == 0) std::fill(used.begin(), used.end(), 0);
      const bool sink = first_block_ == 0 && t < sinks_;
      EncodeToken(rules, &rows[t * width], t, sink, &used, &out);
    }
    return out;
  }

  // z, s of every channel of one token (4.1: the channel's own; 4.2: of the elements that are no outliers).
  std::vector<Normalizer> Normalizers(const Rules& rules, const float* x,
                                      const std::vector<int>& outliers) const {
    const int width = rules.dim * c_.kv_heads, span = whole_token_ ? width : rules.dim;
    std::vector<Normalizer> all(width);
    for (int c = 0; c < width; ++c) {
      if (!rules.by_token) {
        const float lo = Table(rules.side + "_lo")[c], hi = Table(rules.side + "_hi")[c];
        all[c] = {(hi + lo) / 2, (hi - lo) / 2};
      } else if (c % span != 0) {
        all[c] = all[c - 1];
      } else {
        all[c] = OfRange(x, c, c + span, outliers);
      }
    }
    return all;
  }

  static Normalizer OfRange(const float* x, int begin, int end, const std::vector<int>& outliers) {
    bool any = false;
    float lo = 0, hi = 0;
    for (int i = begin; i < end; ++i) {
      if (std::find(outliers.begin(), outliers.end(), i) != outliers.end()) continue;
      lo = any ? std::min(lo, x[i]) : x[i];
      hi = any ? std::max(hi, x[i]) : x[i];
      any = true;
    }
    Normalizer n{RoundHalf((hi + lo) / 2), RoundHalf((hi - lo) / 2)};
    if (n.s == 0.0f && hi > lo) n.s = 0x1p-24f;
    return n;
  }

  std::vector<int> Extremes(const float* x, int width) const {
    const int m = OutliersPerSide(width, row_.outliers);
    std::vector<int> order(width);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
    std::vector<int> rest(order.begin() + m, order.end());
    std::sort(rest.begin(), rest.end());
    std::stable_sort(rest.begin(), rest.end(), [&](int a, int b) { return x[a] < x[b]; });
    order.resize(m);
    order.insert(order.end(), rest.begin(), rest.begin() + m);
    std::sort(order.begin(), order.end());
    return order;
  }

  std::vector<int> BeyondThresholds(const Rules& rules, const float* x, int width) const {
    const std::vector<float>&lo = Table(rules.side + "_lo"), &hi = Table(rules.side + "_hi");
    std::vector<int> beyond;
    for (int c = 0; c < width; ++c) {
      if (x[c] < lo[c] || x[c] > hi[c]) beyond.push_back(c);
    }
    return beyond;
  }

  // 4.1: at most m a side, ranked by t = (x - z) / s.
  std::vector<int> Capped(const Rules& rules, const float* x,
                          const std::vector<int>& beyond) const {
    const std::vector<float>&lo = Table(rules.side + "_lo"), &hi = Table(rules.side + "_hi");
    const auto rank = [&](int c) {
      const float z = (hi[c] + lo[c]) / 2, s = (hi[c] - lo[c]) / 2;
      return s > 0 ? (x[c] - z) / s : x[c] > z ? INFINITY : -INFINITY;
    };
    std::vector<int> kept;
    for (const bool upper : {true, false}) {
      std::vector<int> side;
      for (const int c : beyond) {
        if ((x[c] > hi[c]) == upper) side.push_back(c);
      }
      std::stable_sort(side.begin(), side.end(),
                       [&](int a, int b) { return upper ? rank(a) > rank(b) : rank(a) < rank(b); });
      side.resize(std::min<size_t>(side.size(), PerSide(rules.dim)));
      kept.insert(kept.end(), side.begin(), side.end());
    }
    std::sort(kept.begin(), kept.end());
    return kept;
  }

  void EncodeToken(const Rules& rules, const float* x, int64_t t, bool sink, std::vector<int>* used,
                   NuqSide* out) const {
    const int width = rules.dim * c_.kv_heads, codes = 1 << row_.bits;
    std::vector<int> wanted =
        rules.by_token ? Extremes(x, width) : BeyondThresholds(rules, x, width);
    const std::vector<Normalizer> n = Normalizers(rules, x, wanted);
    const size_t at = out->codes.size();
    for (int c = 0; c < width; ++c) {
      int best = 0;
      for (int j = 1; j < codes; ++j) {
        const float far = std::abs(x[c] - (n[c].s * rules.cent[j] + n[c].z));
        if (far < std::abs(x[c] - (n[c].s * rules.cent[best] + n[c].z))) best = j;
      }
      out->codes.push_back(static_cast<uint8_t>(best));
      out->dense.push_back(n[c].s * rules.decode[best] + n[c].z);
    }
    out->restored.resize(out->dense.size());
    std::copy(out->dense.begin() + at, out->dense.end(), out->restored.begin() + at);
    if (sink) return;
    const size_t all = wanted.size();
    if (row_.outliers == 0) wanted.clear();
    if (rules.capped) wanted = Capped(rules, x, wanted);
    out->saturated += all - wanted.size();
    Place(rules, x, t, wanted, used, out);
  }

  // Residuals against the code's value into the slots of each head, the largest first where they run short.
  void Place(const Rules& rules, const float* x, int64_t t, const std::vector<int>& wanted,
             std::vector<int>* used, NuqSide* out) const {
    float* const dense = &out->dense[t * rules.dim * c_.kv_heads];
    float* const restored = &out->restored[t * rules.dim * c_.kv_heads];
    for (int head = 0; head < c_.kv_heads; ++head) {
      std::vector<Candidate> own;
      for (const int c : wanted) {
        if (c / rules.dim != head) continue;
        const float residual = RoundHalf(x[c] - dense[c]);
        if (residual != 0.0f || exact_) own.push_back({c, residual});
      }
      if (!exact_) {
        const int slots = static_cast<int>(Table(rules.side + "_slots")[head]);
        const size_t left = slots - (*used)[head];
        std::stable_sort(own.begin(), own.end(), [](const Candidate& a, const Candidate& b) {
          return std::abs(a.residual) > std::abs(b.residual);
        });
        const size_t lost = own.size() - std::min(own.size(), left);
        own.resize(own.size() - lost);
        out->overflow += lost, out->saturated += lost;
        (*used)[head] += static_cast<int>(own.size());
        std::sort(own.begin(), own.end(),
                  [](const Candidate& a, const Candidate& b) { return a.channel < b.channel; });
      }
      for (const Candidate& e : own) {
        restored[e.channel] = dense[e.channel] + e.residual;
        out->saturated += std::abs(x[e.channel] - dense[e.channel]) > 65504.0f;
        out->entries.push_back(
            {t / c_.block, static_cast<int>(t % c_.block), e.channel, e.residual});
      }
    }
  }

  CodecCase c_;
  CodecRow row_;
  const CodecTables& tables_;
  int sinks_;
  int64_t first_block_;
  std::string id_;
  bool whole_token_ = false, exact_ = false;
};

}  // namespace kvring
