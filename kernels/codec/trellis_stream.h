// SPDX-License-Identifier: Apache-2.0
// Trellis codes of vectors in a page, and tiles of them.
//
// A vector's codes are one bit stream, the low bit of a byte first, that begins anew, at a whole byte, with every group of
// coefficients (those of one gain): coefficient i of b bits adds b bits, and stands for the entry of its width's table
// (trellis_tables.h) whose number is the last 7 bits of the group's stream up to there, the oldest lowest; bits before the
// group's first are zeros. Coefficients of 0 bits stand for 0 and add nothing. So a stream holds the bits of its codes and
// nothing else, but for what fills the last byte of a group.
//
// A side of a page: streams u8 [B][bytes()], then gain bytes [groups][B] of at least 16 slots, in which reads of four bytes at
// a stream's end may end.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/codec/trellis_tables.h"

namespace kvring {

// Immutable, thread-safe.
class TrellisStream {
 public:
  // bits: [dim] of every coefficient, 0..6; a group has `group_rows` coefficients, the last one what is left.
  TrellisStream(const std::vector<uint8_t>& bits, int group_rows);

  int64_t bytes() const { return bytes_; }  // of one vector
  const std::vector<uint8_t>& bits() const { return bits_; }

  // Writes a vector's stream, all bytes of it. codes: new bits of coefficient i at codes[i * stride].
  void Put(const uint8_t* codes, int64_t stride, uint8_t* stream) const;

  // The plain reading: the number of the entry of coefficient i.
  int Window(const uint8_t* stream, int i) const;

  // kt[i][t] += scale[t] * number of coefficient i of slot t, for i in [first, first + rows) of all `block` slots (a multiple of
  // 16). kt: [rows][block], of coefficient `first` on.
  void AddKeys(const uint8_t* streams, int first, int rows, int block, const float* scale,
               float* kt) const;

  // out[t][i] = scale[t] * (factor[i] * number of coefficient i of slot t), i in [first, first + rows), t < tokens. factor, out:
  // of coefficient `first` on; rows of out are `stride` floats.
  void ReadValues(const uint8_t* streams, int first, int rows, int tokens, const float* scale,
                  const float* factor, int64_t stride, float* out) const;

  // Where a coefficient's window lies: (((u32 at byte) << 7) >> shift) & mask, plus the offset of its table.
  struct Place {
    std::vector<int32_t> byte, shift, mask, table;  // [dim + 16], the last 16 read nothing
  };

 private:
  std::vector<uint8_t> bits_;
  std::vector<int64_t> group_byte_;  // [dim] where the group of a coefficient begins
  std::vector<int32_t> end_;         // [dim] bits of the group up to and with a coefficient
  Place place_;
  int64_t bytes_ = 0;
};

}  // namespace kvring
