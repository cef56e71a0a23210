// SPDX-License-Identifier: Apache-2.0
// A codec with known bytes, for tests of what stores and moves pages. Slot t of a page holds fp16 numbers; what else the
// options say is visible in the bytes:
//   page_scoped    each number less the page's maximum of its channel, the maxima behind the slots
//   prefix_tokens  each key number less the channel's mean over the prefix
//   lossless       the plain numbers
// Every head's page has `pad` more bytes a layer and a head, so that sizes differ and are no multiples of anything.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/codec.h"

namespace kvring {

struct MockCodecOptions {
  KvShape shape;
  KeyDomain key_domain = KeyDomain::kPostRope;
  bool page_scoped = false;
  bool lossless = false;
  int sink_tokens = 0;
  int prefix_tokens = 0;
  int pad = 3;
};

class MockCodec final : public Codec {
 public:
  explicit MockCodec(const MockCodecOptions& options) : options_(options) {
    traits_.id = "mock";
    traits_.key_domain = options.key_domain;
    traits_.lossless = options.lossless;
    traits_.sink_tokens = options.sink_tokens;
    traits_.prefix_tokens = options.prefix_tokens;
    if (options.prefix_tokens > 0) traits_.k_scope = ParamScope::kPrefix;
    if (options.page_scoped) traits_.v_scope = ParamScope::kPage;
  }

  const CodecTraits& traits() const override { return traits_; }

  PageBytes PageSize(int layer, int head) const override {
    const int64_t rows = options_.shape.block_tokens + (options_.page_scoped ? 1 : 0);
    return {rows * options_.shape.dk * 2 + options_.pad * layer,
            rows * options_.shape.dv * 2 + options_.pad * head};
  }

  int64_t SumFloats() const override {
    return options_.prefix_tokens > 0 ? options_.shape.dk + 1 : 0;
  }
  int64_t StateFloats() const override {
    return options_.prefix_tokens > 0 ? options_.shape.dk + 1 : 0;
  }

  // Sums: channels of k, then one number that depends on every query of the group.
  void Observe(const ObserveArgs& args, float* sums) const override {
    const KvShape& shape = options_.shape;
    for (int64_t t = 0; t < args.count; ++t) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        float* const own = sums + head * SumFloats();
        const float* const k = args.k + (t * shape.kv_heads + head) * shape.dk;
        for (int c = 0; c < shape.dk; ++c) own[c] += k[c];
        const float* const q = args.q + (t * shape.query_heads + head * shape.group()) * shape.dk;
        for (int c = 0; c < shape.group() * shape.dk; ++c) own[shape.dk] += q[c] * q[c];
      }
    }
  }

  void Freeze(int, int, std::span<const float* const> block_sums, float* state) const override {
    for (int64_t i = 0; i < StateFloats(); ++i) {
      float sum = 0;
      for (const float* sums : block_sums) sum += sums[i];
      state[i] = HalfToFloat(FloatToHalf(sum / static_cast<float>(options_.prefix_tokens)));
    }
  }

  void ToValueDomain(int layer, float* v, int64_t tokens) const override {
    Negate(v, tokens * options_.shape.kv_heads);
  }
  void FinishOutput(int layer, int head, float* o, int64_t rows) const override { Negate(o, rows); }

  Error Encode(const EncodeArgs& args) const override {
    const KvShape& shape = options_.shape;
    for (int head = 0; head < shape.kv_heads; ++head) {
      const float* mean = args.state == nullptr ? nullptr : args.state + head * StateFloats();
      uint8_t* const v_part = args.pages[head] + PageSize(args.layer, head).k;
      Write(args, shape.dk, args.k + head * shape.dk, shape.kv_heads * shape.dk, mean,
            args.pages[head]);
      Write(args, shape.dv, args.v + head * shape.dv, shape.kv_heads * shape.dv, nullptr, v_part);
    }
    return {};
  }

  void DecodeKeys(int layer, int head, const float* state, const PageView& page,
                  float* kt) const override {
    const int block = options_.shape.block_tokens, dk = options_.shape.dk;
    std::fill_n(kt, block * dk, 0.0f);
    for (int t = 0; t < page.tokens; ++t) {
      for (int c = 0; c < dk; ++c) {
        const bool sink = t < page.sinks;
        kt[c * block + t] = sink ? HalfToFloat(page.sink_k[t * page.sink_k_stride + c])
                                 : Number(page.packed, t, c, dk) + (state ? state[c] : 0.0f);
      }
    }
  }

  void DecodeValues(int layer, int head, const float* state, const PageView& page,
                    float* v) const override {
    const int dv = options_.shape.dv;
    const uint8_t* const part = page.packed + PageSize(layer, head).k;
    std::fill_n(v, options_.shape.block_tokens * dv, 0.0f);
    for (int t = 0; t < page.tokens; ++t) {
      for (int c = 0; c < dv; ++c) {
        v[t * dv + c] = t < page.sinks ? HalfToFloat(page.sink_v[t * page.sink_v_stride + c])
                                       : Number(part, t, c, dv);
      }
    }
  }

 private:
  // Any linear map that differs from the identity shows whether rows went through it once.
  void Negate(float* v, int64_t rows) const {
    if (options_.lossless) return;
    for (int64_t i = 0; i < rows * options_.shape.dv; ++i) v[i] = -v[i];
  }

  static float Read(const uint8_t* part, int64_t index) {
    Half half;
    std::memcpy(&half, part + index * 2, 2);
    return HalfToFloat(half);
  }
  float Number(const uint8_t* part, int t, int c, int d) const {
    const float base =
        options_.page_scoped ? Read(part, options_.shape.block_tokens * d + c) : 0.0f;
    return Read(part, static_cast<int64_t>(t) * d + c) + base;
  }
  void Write(const EncodeArgs& args, int d, const float* rows, int64_t stride, const float* mean,
             uint8_t* part) const {
    for (int c = 0; c < d; ++c) {
      float base = mean ? mean[c] : 0.0f;
      if (options_.page_scoped) {
        float largest = -std::numeric_limits<float>::infinity();
        for (int t = 0; t < args.count; ++t) largest = std::max(largest, rows[t * stride + c]);
        Store(part, options_.shape.block_tokens * d + c, largest);
        base += largest;
      }
      for (int t = 0; t < args.count; ++t) {
        Store(part, static_cast<int64_t>(args.first + t) * d + c, rows[t * stride + c] - base);
      }
    }
  }
  static void Store(uint8_t* part, int64_t index, float number) {
    const Half half = FloatToHalf(number);
    std::memcpy(part + index * 2, &half, 2);
  }

  MockCodecOptions options_;
  CodecTraits traits_;
};

}  // namespace kvring
