// SPDX-License-Identifier: Apache-2.0
// Calibrated tables of a model as codecs see them: named fp32 tensors. kvstore reads and writes them as files.
//
// Names are "<table id>/<tensor>". A table id is a codec's name with those options that change its tables, in the codec's
// order: "nuq3-1%", "nuq3-1%:post-rope:qnorm". One file may hold the tables of many codecs.
//
// Tensors of nuq (L layers, H KV heads, C = 2^bits; normalized units of kvquant spec 2):
//   k_lo, k_hi   [L][H*dk]  thresholds per key channel (not with token-keys)
//   v_lo, v_hi   [L][H*dv]  the same for values, with channel-values alone
//   k_cent       [L][C]     ascending; keys' datatype
//   v_cent       [L][C]     values' datatype where the scale belongs to a (token, head)
//   v_cent_token [L][C]     values' datatype where the scale belongs to a token over all heads
//   k_decode, v_decode, v_decode_token [L][C]: what codes decode to, with qnorm; absent: the centroids
//   k_slots, v_slots [L][H] outlier slots of one page of that head, for blocks of block_tokens (a [1] tensor)
//   k_outliers, v_outliers [L][H]: mean outliers of a token seen in calibration (sizes the exact container)
//
// Tensors of tc, table id "tc" for every rate (sides k and v, D = dk or dv; rotated-and-transform 4). y = (x - mean) basis:
//   k_mean, v_mean         [L][H*D]    keys before RoPE
//   k_basis, v_basis       [L][H][D*D] G^(1/2) U, row of channel i, column of coefficient j, scaled to a mean square singular
//                                      value of 1; of keys after RoPE
//   k_inverse, v_inverse   [L][H][D*D] its inverse: x = y inverse + mean
//   k_lambda, v_lambda     [L][H*D]    variance of each coefficient, falling, positive
//   k_weight, v_weight     [L][H]      loss of a unit of squared y: what the basis was scaled by, comparable between sides
//   k_rot, v_rot           [L][H]      1: the held-out check chose a plain rotation for this side, which basis and lambda
//                                      then hold; `adapt` leaves it as it is
//   served_context         [1]         positions that keys were turned to: 0..n-1
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvring {

struct CodecTable {
  std::vector<int64_t> shape;
  std::vector<float> values;  // product of shape
};

// Immutable once shared; thread-safe.
struct CodecTables {
  std::map<std::string, CodecTable> tensors;
  uint64_t hash = 0;  // of all tensors, as the file states it

  // Null when absent.
  const CodecTable* Find(const std::string& name) const {
    const auto it = tensors.find(name);
    return it == tensors.end() ? nullptr : &it->second;
  }
};

}  // namespace kvring
