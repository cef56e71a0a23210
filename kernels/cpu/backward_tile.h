// SPDX-License-Identifier: Apache-2.0
// One step of attention's backward pass: query rows of one head against one block of 64 keys. Scores are formed anew from
// the stored normalizers (Dao et al., FlashAttention, arXiv:2205.14135, algorithm 4). Private to kernels/.
#pragma once

#include <cstdint>

namespace kvring {

inline constexpr int kBackwardBlock = 64;

struct BackwardTileArgs {
  int rows = 0;                    // of queries, at most 64
  int dk = 0, dv = 0;              // multiples of 16
  bool diagonal = false;           // row r sees keys 0..r of the block; else all of them
  const float* q = nullptr;        // [rows][dk], scaled by log2(e)/sqrt(head size)
  const float* d_out = nullptr;    // [rows][dv]
  const float* log_sum = nullptr;  // [rows] log2 sum 2^(scores)
  const float* delta = nullptr;    // [rows] <d_out, out>
  const float* k = nullptr;        // [64][dk]
  const float* kt = nullptr;       // [dk][64]
  const float* vt = nullptr;       // [dv][64]
  float* dq = nullptr;             // [rows][dk] += ds k, ds = p (d_out v - delta)
  float* dk_sum = nullptr;         // [64][dk] += ds^T q
  float* dv_sum = nullptr;         // [64][dv] += p^T d_out
};

void BackwardTile(const BackwardTileArgs& args);

}  // namespace kvring
