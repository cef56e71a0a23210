// SPDX-License-Identifier: Apache-2.0
// Causal attention of one window and its gradients. Forward is the tile kernel of attention over caches; backward goes
// one query head at a time through the blocks that its rows see. The masked upper half is never visited.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attention.h"
#include "kernels/backward.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/backward_tile.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

constexpr int64_t kBlock = kBackwardBlock;
constexpr double kLog2 = 0.693147180559945309417;  // log2 e = 1 / log 2

int Wide(int d) { return (d + 15) / 16 * 16; }

// Rows of one head, [rows][heads][d], as [rows][wide] times a factor; the rest of a row is zeros.
void PackRows(const float* x, int64_t rows, int heads, int d, int wide, float factor, float* to) {
  for (int64_t r = 0; r < rows; ++r, x += static_cast<int64_t>(heads) * d, to += wide) {
    for (int i = 0; i < d; ++i) to[i] = x[i] * factor;
    std::fill(to + d, to + wide, 0.0f);
  }
}

void Turn(const float* tile, int wide, float* turned) {
  for (int64_t t = 0; t < kBlock; ++t) {
    for (int i = 0; i < wide; ++i) turned[i * kBlock + t] = tile[t * wide + i];
  }
}

float Factor(const CausalShape& shape) {
  return static_cast<float>(1 / (kLog2 * std::sqrt(static_cast<double>(shape.dk))));
}

}  // namespace

CausalAttention::CausalAttention(const CausalShape& shape)
    : shape_(shape),
      blocks_((shape.rows + kBlock - 1) / kBlock),
      wide_k_(Wide(shape.dk)),
      wide_v_(Wide(shape.dv)) {
  const size_t tiles = static_cast<size_t>(shape.kv_heads * blocks_ * kBlock);
  for (std::vector<float>* x : {&k_, &kt_}) x->resize(tiles * wide_k_ + kTilePad);
  for (std::vector<float>* x : {&v_, &vt_}) x->resize(tiles * wide_v_ + kTilePad);
  log_sum_.resize(static_cast<size_t>(shape.query_heads * shape.rows));
}

int64_t CausalAttention::BufferBytes(const CausalShape& shape) {
  const int64_t positions = (shape.rows + kBlock - 1) / kBlock * kBlock;
  const int64_t wide = Wide(shape.dk) + Wide(shape.dv);
  const int64_t floats =
      positions * wide * (2 * shape.kv_heads + shape.query_heads) + shape.rows * shape.query_heads;
  return floats * static_cast<int64_t>(sizeof(float));
}

void CausalAttention::PackKeysValues(const float* k, const float* v, int64_t task) {
  const int64_t head = task / blocks_, first = task % blocks_ * kBlock;
  const int64_t rows = std::min(kBlock, shape_.rows - first);
  const auto pack = [&](const float* x, int d, int wide, float* tile, float* turned) {
    std::fill_n(tile, kBlock * wide, 0.0f);
    PackRows(x + (first * shape_.kv_heads + head) * d, rows, shape_.kv_heads, d, wide, 1.0f, tile);
    Turn(tile, wide, turned);
  };
  const int64_t at = task * kBlock;
  pack(k, shape_.dk, wide_k_, k_.data() + at * wide_k_, kt_.data() + at * wide_k_);
  pack(v, shape_.dv, wide_v_, v_.data() + at * wide_v_, vt_.data() + at * wide_v_);
}

void CausalAttention::Forward(const float* q, const float* k, const float* v, float* out) {
  ParallelFor(shape_.kv_heads * blocks_, [&](int64_t task) { PackKeysValues(k, v, task); });
  ParallelFor(shape_.query_heads * blocks_, [&](int64_t task) { ForwardRows(q, out, task); });
}

// 64 query rows of one head against the blocks up to their own.
void CausalAttention::ForwardRows(const float* q, float* out, int64_t task) {
  const int64_t head = task / blocks_, block = task % blocks_, first = block * kBlock;
  const int64_t rows = std::min(kBlock, shape_.rows - first);
  const int64_t tiles = head / shape_.group() * blocks_;
  thread_local AttendScratch scratch;
  thread_local std::vector<float> mine, sums;
  mine.resize(static_cast<size_t>(kBlock * wide_k_));
  sums.resize(static_cast<size_t>(kBlock * wide_v_));
  int64_t positions[kBlock];
  float m[kBlock] = {}, l[kBlock] = {};  // l = 0: no key yet
  std::iota(positions, positions + kBlock, first);
  PackRows(q + (first * shape_.query_heads + head) * shape_.dk, rows, shape_.query_heads, shape_.dk,
           wide_k_, Factor(shape_), mine.data());
  for (int64_t b = 0; b <= block; ++b) {
    AttendTileArgs args;
    args.q = mine.data();
    args.positions = positions;
    args.rows = rows;
    args.kt = kt_.data() + (tiles + b) * kBlock * wide_k_;
    args.v = v_.data() + (tiles + b) * kBlock * wide_v_;
    args.block = static_cast<int>(kBlock);
    args.dk = wide_k_, args.dv = wide_v_;
    args.begin = b * kBlock;
    args.tokens = static_cast<int>(std::min(kBlock, shape_.rows - args.begin));
    args.partial.m = m, args.partial.l = l, args.partial.o = sums.data();
    args.partial.rows = rows, args.partial.dv = wide_v_;
    AttendTile(args, scratch);
  }
  for (int64_t r = 0; r < rows; ++r) {
    log_sum_[head * shape_.rows + first + r] = m[r] + std::log2(l[r]);
    float* to = out + ((first + r) * shape_.query_heads + head) * shape_.dv;
    for (int i = 0; i < shape_.dv; ++i) to[i] = sums[r * wide_v_ + i] / l[r];
  }
}

void CausalAttention::BackwardHead(const float* q, const float* out, const float* d_out, int head,
                                   float* dq) {
  const CausalShape& s = shape_;
  const int64_t tiles = head / s.group() * blocks_, parts = head * blocks_ * kBlock;
  float* const dk_sum = dk_parts_.data() + parts * wide_k_;
  float* const dv_sum = dv_parts_.data() + parts * wide_v_;
  std::fill_n(dk_sum, blocks_ * kBlock * wide_k_, 0.0f);
  std::fill_n(dv_sum, blocks_ * kBlock * wide_v_, 0.0f);
  std::vector<float> rows_q(kBlock * wide_k_), rows_do(kBlock * wide_v_), rows_dq(rows_q.size());
  float delta[kBlock];
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.dk)));
  for (int64_t block = 0; block < blocks_; ++block) {
    const int64_t first = block * kBlock, rows = std::min(kBlock, s.rows - first);
    const int64_t at_k = (first * s.query_heads + head) * s.dk;
    const int64_t at_v = (first * s.query_heads + head) * s.dv;
    PackRows(q + at_k, rows, s.query_heads, s.dk, wide_k_, Factor(s), rows_q.data());
    PackRows(d_out + at_v, rows, s.query_heads, s.dv, wide_v_, 1.0f, rows_do.data());
    std::fill(rows_dq.begin(), rows_dq.end(), 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const float* o = out + at_v + r * s.query_heads * s.dv;
      double sum = 0;
      for (int i = 0; i < s.dv; ++i) sum += static_cast<double>(o[i]) * rows_do[r * wide_v_ + i];
      delta[r] = static_cast<float>(sum);
    }
    for (int64_t b = 0; b <= block; ++b) {
      const int64_t tile = (tiles + b) * kBlock;
      BackwardTileArgs args;
      args.rows = static_cast<int>(rows);
      args.dk = wide_k_, args.dv = wide_v_;
      args.diagonal = b == block;
      args.q = rows_q.data(), args.d_out = rows_do.data();
      args.log_sum = log_sum_.data() + head * s.rows + first;
      args.delta = delta;
      args.k = k_.data() + tile * wide_k_, args.kt = kt_.data() + tile * wide_k_;
      args.vt = vt_.data() + tile * wide_v_;
      args.dq = rows_dq.data();
      args.dk_sum = dk_sum + b * kBlock * wide_k_, args.dv_sum = dv_sum + b * kBlock * wide_v_;
      BackwardTile(args);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* to = dq + at_k + r * s.query_heads * s.dk;
      for (int i = 0; i < s.dk; ++i) to[i] = rows_dq[r * wide_k_ + i] * scale;
    }
  }
}

// One block of positions: sum over the query heads of each KV head. parts: [query_heads][blocks][64][wide].
void CausalAttention::SumGroup(const std::vector<float>& parts, int wide, int d, int64_t block,
                               float* sum) const {
  const int64_t last = std::min(shape_.rows, (block + 1) * kBlock);
  for (int64_t r = block * kBlock; r < last; ++r) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      float* to = sum + (r * shape_.kv_heads + head) * d;
      std::fill_n(to, d, 0.0f);
      for (int g = head * shape_.group(); g < (head + 1) * shape_.group(); ++g) {
        const float* from = parts.data() + (g * blocks_ * kBlock + r) * wide;
        for (int i = 0; i < d; ++i) to[i] += from[i];
      }
    }
  }
}

void CausalAttention::Backward(const float* q, const float* out, const float* d_out, float* dq,
                               float* dk, float* dv) {
  const size_t positions = static_cast<size_t>(shape_.query_heads * blocks_ * kBlock);
  dk_parts_.resize(positions * wide_k_);
  dv_parts_.resize(positions * wide_v_);
  ParallelFor(shape_.query_heads,
              [&](int64_t head) { BackwardHead(q, out, d_out, static_cast<int>(head), dq); });
  ParallelFor(blocks_, [&](int64_t block) {
    SumGroup(dk_parts_, wide_k_, shape_.dk, block, dk);
    SumGroup(dv_parts_, wide_v_, shape_.dv, block, dv);
    // The tiles multiplied by q log2(e)/sqrt(dk) where 1/sqrt(dk) belongs.
    float* const first = dk + block * kBlock * shape_.kv_heads * shape_.dk;
    const int64_t rows = std::min(kBlock, shape_.rows - block * kBlock);
    const auto log2 = static_cast<float>(kLog2);
    for (int64_t i = 0; i < rows * shape_.kv_heads * shape_.dk; ++i) first[i] *= log2;
  });
}

}  // namespace kvring
