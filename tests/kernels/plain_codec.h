// SPDX-License-Identifier: Apache-2.0
// A codec for tests of attention: halves as they are, in a query domain that is not the raw one (channels in reverse,
// every other one negated), with traits of the test's choice. Packed and exact rows of a test hold different numbers, so
// reading the wrong one shows.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/codec.h"

namespace kvring {

class PlainCodec : public Codec {
 public:
  PlainCodec(CodecTraits traits, KvShape shape, const RopeTable* rope)
      : traits_(std::move(traits)), shape_(shape), rope_(rope) {}

  const CodecTraits& traits() const override { return traits_; }
  PageBytes PageSize(int, int) const override {
    return {shape_.block_tokens * shape_.dk * 2, shape_.block_tokens * shape_.dv * 2};
  }
  Error Encode(const EncodeArgs&) const override {
    return {"pages of this codec are written by the test"};
  }

  void PrepareQuery(int, int, const float*, const float* raw_q, int64_t rows,
                    float* packed_q) const override {
    for (int64_t r = 0; r < rows; ++r)
      ToQueryDomain(raw_q + r * shape_.dk, packed_q + r * shape_.dk);
  }

  void DecodeKeys(int, int, const float*, const PageView& page, float* kt) const override {
    const int block = shape_.block_tokens, dk = shape_.dk;
    std::fill_n(kt, block * dk, 0.0f);
    std::vector<float> row(dk), turned(dk);
    for (int t = 0; t < page.tokens; ++t) {
      for (int i = 0; i < dk; ++i) {
        row[i] = HalfToFloat(t < page.sinks ? page.sink_k[t * page.sink_k_stride + i]
                                            : Packed(page, t * dk + i));
      }
      if (traits_.key_domain == KeyDomain::kPreRope) {
        std::vector<float> angles(2 * rope_->planes());
        RopeAngles(*rope_, page.begin + t, angles.data());
        RopeRotate(*rope_, angles.data(), row.data());
      }
      ToQueryDomain(row.data(), turned.data());
      for (int i = 0; i < dk; ++i) kt[i * block + t] = turned[i];
    }
  }

  void DecodeValues(int, int, const float*, const PageView& page, float* v) const override {
    const int block = shape_.block_tokens, dv = shape_.dv;
    std::fill_n(v, block * dv, 0.0f);
    for (int t = 0; t < page.tokens; ++t) {
      for (int i = 0; i < dv; ++i) {
        v[t * dv + i] = HalfToFloat(t < page.sinks ? page.sink_v[t * page.sink_v_stride + i]
                                                   : Packed(page, block * shape_.dk + t * dv + i));
      }
    }
  }

 private:
  Half Packed(const PageView& page, int element) const {
    Half h;
    std::memcpy(&h, page.packed + 2 * element, sizeof(h));
    return h;
  }
  void ToQueryDomain(const float* x, float* y) const {
    for (int i = 0; i < shape_.dk; ++i) y[i] = x[shape_.dk - 1 - i] * (i % 2 == 0 ? 1.0f : -1.0f);
  }

  CodecTraits traits_;
  KvShape shape_;
  const RopeTable* rope_;
};

}  // namespace kvring
