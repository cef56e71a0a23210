// SPDX-License-Identifier: Apache-2.0
// A sequence's rows and the pages that a codec makes of them: what the tests of codecs share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "tests/support/nuq_tables.h"
#include "tests/support/tc_tables.h"

namespace kvring {

inline float RoundHalf(float x) { return HalfToFloat(FloatToHalfSaturated(x)); }

struct CodecCase {
  std::string name = "rot4";
  std::vector<std::string> flags;
  int dk = 64, dv = 64;
  int kv_heads = 2, query_heads = 4;
  int block = 64;
  RopePairing pairing = RopePairing::kInterleaved;
  double rope_base = 10000.0;
  int rotary = 0;      // channels that turn; 0: all
  bool still = false;  // no plane turns: keys before RoPE show as they were stored
  // What calibrated codecs get; null: tables fitted to whatever rows are set.
  std::shared_ptr<const CodecTables> tables;
};

// One layer of one sequence: rows, state, pages of all blocks from position `begin` on (a multiple of the block).
class CodecHarness {
 public:
  explicit CodecHarness(const CodecCase& c) : c_(c) {
    rope_ = MakeRopeTable(c.pairing, c.dk, c.rotary > 0 ? c.rotary : c.dk / 2 * 2, c.rope_base, {});
    if (c.still) std::fill(rope_.inv_freq.begin(), rope_.inv_freq.end(), 0.0);
    row_ = FindCodec(c.name);
    if (row_ == nullptr) return;
    if (c.tables || !row_->calibrated) {
      Make(c.tables);
    } else {
      Make(row_->rate > 0 ? TestTcTables(Shape()) : TestNuqTables(Shape(), c.flags, c.name));
    }
  }

  const Codec& codec() const { return *made_.codec; }
  bool ok() const { return made_.codec != nullptr; }
  const std::string& error() const { return made_.error; }
  const RopeTable& rope() const { return rope_; }
  const CodecCase& shape() const { return c_; }
  const CodecTables& tables() const { return *tables_; }  // of a calibrated codec

  // Gaussian rows, keys around a mean per channel of about `bias` deviations.
  void MakeRows(int64_t tokens, unsigned seed, float bias) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    tokens_ = tokens;
    std::vector<float> mean(c_.kv_heads * c_.dk);
    for (float& m : mean) m = bias * normal(random);
    const auto fill = [&](int64_t n, std::vector<float>* rows) {
      rows->resize(n);
      for (float& x : *rows) x = RoundHalf(normal(random));
    };
    fill(tokens * c_.kv_heads * c_.dk, &k_);
    fill(tokens * c_.kv_heads * c_.dv, &v_);
    fill(tokens * c_.query_heads * c_.dk, &q_);
    for (size_t i = 0; i < k_.size(); ++i) k_[i] = RoundHalf(k_[i] + mean[i % mean.size()]);
    Rotate();
  }

  // Rows given by a function of (token, head, channel); queries are ones.
  template <class Key, class Value>
  void SetRows(int64_t tokens, Key key, Value value) {
    tokens_ = tokens;
    k_.assign(tokens * c_.kv_heads * c_.dk, 0.0f);
    v_.assign(tokens * c_.kv_heads * c_.dv, 0.0f);
    q_.assign(tokens * c_.query_heads * c_.dk, 1.0f);
    for (int64_t r = 0; r < tokens * c_.kv_heads; ++r) {
      for (int i = 0; i < c_.dk; ++i) k_[r * c_.dk + i] = key(r / c_.kv_heads, r % c_.kv_heads, i);
      for (int i = 0; i < c_.dv; ++i)
        v_[r * c_.dv + i] = value(r / c_.kv_heads, r % c_.kv_heads, i);
    }
    Rotate();
  }

  // Sums of the prefix in calls of `step` tokens, then the state.
  void FreezeState(int64_t step = 1 << 30) {
    const CodecTraits& traits = codec().traits();
    state_.assign(c_.kv_heads * codec().StateFloats(), 0.0f);
    if (traits.prefix_tokens == 0) return;
    const int64_t blocks = traits.prefix_tokens / c_.block, floats = codec().SumFloats();
    std::vector<float> sums(blocks * c_.kv_heads * floats, 0.0f);
    for (int64_t begin = 0; begin < traits.prefix_tokens;) {
      const int64_t block = begin / c_.block;
      const int64_t count = std::min(step, (block + 1) * c_.block - begin);
      codec().Observe(
          {0, begin, count, &k_[begin * c_.kv_heads * c_.dk], &q_[begin * c_.query_heads * c_.dk],
           &v_domain_[begin * c_.kv_heads * c_.dv]},
          &sums[block * c_.kv_heads * floats]);
      begin += count;
    }
    for (int h = 0; h < c_.kv_heads; ++h) {
      std::vector<const float*> of_head;
      for (int64_t b = 0; b < blocks; ++b) of_head.push_back(&sums[(b * c_.kv_heads + h) * floats]);
      codec().Freeze(0, h, of_head, &state_[h * codec().StateFloats()]);
    }
  }

  // Encodes complete and (unless the codec needs whole ones) incomplete blocks, `step` tokens a call; fill: the pages' bytes before.
  Error EncodeAll(int64_t step = 1 << 30, uint8_t fill = 0) {
    const int64_t blocks = (tokens_ + c_.block - 1) / c_.block;
    pages_.clear();
    for (int64_t page = 0; page < blocks * c_.kv_heads; ++page)
      pages_.emplace_back(codec().PageSize(0, page % c_.kv_heads).total(), fill);
    saturated_ = overflow_ = 0;
    const bool whole = codec().traits().page_scoped();
    for (int64_t begin = 0; begin < tokens_;) {
      const int64_t block = begin / c_.block,
                    left = std::min(tokens_, (block + 1) * c_.block) - begin;
      if (whole && left < c_.block) break;
      const int64_t count = whole ? left : std::min(step, left);
      const Error error = EncodeSlots(block, begin - block * c_.block, count);
      if (error) return error;
      begin += count;
    }
    return {};
  }

  // Grows the page of KV head 0 first where the codec asks for that.
  Error EncodeSlots(int64_t block, int64_t first, int64_t count) {
    std::vector<uint8_t*> pages;
    for (int h = 0; h < c_.kv_heads; ++h) pages.push_back(pages_[block * c_.kv_heads + h].data());
    const int64_t row = (block * c_.block + first) * c_.kv_heads;
    const bool pre = codec().traits().key_domain == KeyDomain::kPreRope;
    EncodeArgs args;
    args.block_begin = begin_ + block * c_.block;
    args.first = static_cast<int>(first), args.count = static_cast<int>(count);
    args.k = (pre ? k_ : k_rope_).data() + row * c_.dk;
    args.v = v_domain_.data() + row * c_.dv;
    args.state = state_.empty() ? nullptr : state_.data();
    args.pages = pages.data();
    args.saturated = &saturated_;
    args.overflow = &overflow_;
    if (codec().traits().growing_page) {
      std::vector<uint8_t>& grown = pages_[block * c_.kv_heads];
      grown.resize(std::max<int64_t>(grown.size(), codec().SharedPageBytes(args)), 0);
      pages[0] = grown.data();
    }
    return codec().Encode(args);
  }

  PageView View(int64_t block, int head) {
    PageView view;
    view.packed = pages_[block * c_.kv_heads + head].data();
    view.shared = pages_[block * c_.kv_heads].data();
    view.begin = begin_ + block * c_.block;
    view.tokens = static_cast<int>(std::min<int64_t>(c_.block, tokens_ - block * c_.block));
    if (view.begin == 0) {
      view.sinks = std::min(codec().traits().sink_tokens, view.tokens);
      const bool pre = codec().traits().key_domain == KeyDomain::kPreRope;
      sink_k_.clear(), sink_v_.clear();
      for (int t = 0; t < view.sinks; ++t) {
        const int64_t row = t * c_.kv_heads + head;
        for (int i = 0; i < c_.dk; ++i)
          sink_k_.push_back(FloatToHalf((pre ? k_ : k_rope_)[row * c_.dk + i]));
        for (int i = 0; i < c_.dv; ++i) sink_v_.push_back(FloatToHalf(v_domain_[row * c_.dv + i]));
      }
      view.sink_k = sink_k_.data(), view.sink_v = sink_v_.data();
      view.sink_k_stride = c_.dk, view.sink_v_stride = c_.dv;
    }
    return view;
  }

  // Decoded over rubbish: what a codec leaves unwritten shows as NaN.
  std::vector<float> Keys(int64_t block, int head) {
    std::vector<float> kt(c_.dk * c_.block, std::nanf(""));
    codec().DecodeKeys(0, head, State(head), View(block, head), kt.data());
    return kt;
  }
  std::vector<float> Values(int64_t block, int head) {
    std::vector<float> v(c_.dv * c_.block, std::nanf(""));
    codec().DecodeValues(0, head, State(head), View(block, head), v.data());
    return v;
  }

  const float* State(int head) const {
    return codec().StateFloats() == 0 ? nullptr : &state_[head * codec().StateFloats()];
  }

  // Rows as the model made them, values back from the codec's domain.
  const float* Key(int64_t token, int head) const {
    return &k_rope_[(token * c_.kv_heads + head) * c_.dk];
  }
  const float* Value(int64_t token, int head) const {
    return &v_[(token * c_.kv_heads + head) * c_.dv];
  }

  void set_begin(int64_t begin) {
    begin_ = begin;
    Rotate();
  }
  std::vector<std::vector<uint8_t>>& pages() { return pages_; }
  std::vector<float>& state() { return state_; }
  std::vector<float>& key_rows() { return k_rope_; }
  std::vector<float>& raw_key_rows() { return k_; }
  std::vector<float>& value_rows() { return v_domain_; }
  int64_t tokens() const { return tokens_; }
  int64_t saturated() const { return saturated_; }
  int64_t overflow() const { return overflow_; }

 private:
  KvShape Shape() const { return {1, c_.query_heads, c_.kv_heads, c_.dk, c_.dv, c_.block}; }

  void Make(std::shared_ptr<const CodecTables> tables) {
    tables_ = std::move(tables);
    CodecOptions options;
    options.shape = Shape();
    options.rope = {&rope_};
    options.flags = c_.flags;
    options.tables = tables_;
    made_ = row_->make(*row_, options);
  }

  // Tables of the rows at hand, sinks left out where there are enough others.
  void Calibrate() {
    if (!row_->calibrated || row_->rate > 0 || c_.tables) return;
    const bool pre = codec().traits().key_domain == KeyDomain::kPreRope;
    const int64_t sinks = tokens_ > 8 ? codec().traits().sink_tokens : 0;
    NuqSample sample{pre ? k_ : k_rope_, v_domain_};
    sample.k = sample.k.subspan(sinks * c_.kv_heads * c_.dk);
    sample.v = sample.v.subspan(sinks * c_.kv_heads * c_.dv);
    Make(TestNuqTablesOfRows(Shape(), c_.name, c_.flags, sample));
  }

  // Keys after RoPE and values in the value domain, as rows reach a codec: fp16 numbers.
  void Rotate() {
    k_rope_ = k_, v_domain_ = v_;
    std::vector<float> angles(2 * rope_.planes());
    for (int64_t r = 0; r < tokens_ * c_.kv_heads; ++r) {
      RopeAngles(rope_, begin_ + r / c_.kv_heads, angles.data());
      RopeRotate(rope_, angles.data(), &k_rope_[r * c_.dk]);
    }
    codec().ToValueDomain(0, v_domain_.data(), tokens_);
    for (float& x : k_rope_) x = RoundHalf(x);
    for (float& x : v_domain_) x = RoundHalf(x);
    Calibrate();
  }

  CodecCase c_;
  RopeTable rope_;
  const CodecRow* row_ = nullptr;
  std::shared_ptr<const CodecTables> tables_;
  CodecMade made_;
  int64_t tokens_ = 0, begin_ = 0, saturated_ = 0, overflow_ = 0;
  std::vector<float> k_, v_, q_, k_rope_, v_domain_, state_;
  std::vector<std::vector<uint8_t>> pages_;
  std::vector<Half> sink_k_, sink_v_;
};

// sqrt(sum of squares of the difference / sum of squares of the original).
class RelativeError {
 public:
  void Add(double original, double restored) {
    error_ += (original - restored) * (original - restored);
    power_ += original * original;
  }
  double value() const { return std::sqrt(error_ / power_); }
  double mse_ratio() const { return error_ / power_; }

 private:
  double error_ = 0.0, power_ = 0.0;
};

// Round-trip error of all packed values of the harness's sequence, sinks left out.
inline RelativeError ValueError(CodecHarness& h) {
  RelativeError error;
  const CodecCase& c = h.shape();
  for (int64_t block = 0; (block + 1) * c.block <= h.tokens(); ++block) {
    for (int head = 0; head < c.kv_heads; ++head) {
      std::vector<float> v = h.Values(block, head);
      h.codec().FinishOutput(0, head, v.data(), c.block);
      for (int t = block == 0 ? 4 : 0; t < c.block; ++t) {
        for (int i = 0; i < c.dv; ++i)
          error.Add(h.Value(block * c.block + t, head)[i], v[t * c.dv + i]);
      }
    }
  }
  return error;
}

// The same of scores: unit vectors as queries give back each key channel.
inline RelativeError KeyError(CodecHarness& h) {
  RelativeError error;
  const CodecCase& c = h.shape();
  std::vector<float> unit(static_cast<size_t>(c.dk) * c.dk, 0.0f), packed(unit.size());
  for (int i = 0; i < c.dk; ++i) unit[i * c.dk + i] = 1.0f;
  for (int64_t block = 0; (block + 1) * c.block <= h.tokens(); ++block) {
    for (int head = 0; head < c.kv_heads; ++head) {
      const std::vector<float> kt = h.Keys(block, head);
      h.codec().PrepareQuery(0, head, h.State(head), unit.data(), c.dk, packed.data());
      for (int t = block == 0 ? 4 : 0; t < c.block; ++t) {
        for (int i = 0; i < c.dk; ++i) {
          double score = 0.0;
          for (int j = 0; j < c.dk; ++j)
            score += double{packed[i * c.dk + j]} * kt[j * c.block + t];
          error.Add(h.Key(block * c.block + t, head)[i], score);
        }
      }
    }
  }
  return error;
}

}  // namespace kvring
