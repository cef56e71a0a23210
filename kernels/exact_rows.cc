// SPDX-License-Identifier: Apache-2.0
// Exact rows as attention reads them. A decode step reads those of the open cell in every layer and head, so few rows take them
// as fp16: keys are transposed (and turned, where the codec keeps them before RoPE), values are used where they lie.
#include "kernels/attention.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/exact_tile.h"

namespace kvring {
namespace {

// Blocks whose angles a thread keeps: two cells of the default size.
constexpr size_t kKeptAngles = 16;

bool SameRope(const RopeTable& a, const RopeTable& b) {
  return a.pairing == b.pairing && a.head_dim == b.head_dim &&
         a.attention_scale == b.attention_scale && a.inv_freq == b.inv_freq;
}

void MakeAngles(const RopeTable& rope, int64_t begin, int64_t columns, BlockAngles& made) {
  made.rope = rope;
  made.begin = begin;
  made.cos_sin.resize(static_cast<size_t>(2 * rope.planes() * columns));
  std::vector<float> of_token(static_cast<size_t>(2 * rope.planes()));
  for (int64_t t = 0; t < columns; ++t) {
    RopeAngles(rope, begin + t, of_token.data());
    for (size_t i = 0; i < of_token.size(); ++i) made.cos_sin[i * columns + t] = of_token[i];
  }
}

const float* AnglesOf(const RopeTable& rope, int64_t begin, int64_t columns,
                      AttendScratch& scratch) {
  const auto floats = static_cast<size_t>(2 * rope.planes() * columns);
  for (const BlockAngles& kept : scratch.angles) {
    if (kept.begin == begin && kept.cos_sin.size() == floats && SameRope(kept.rope, rope))
      return kept.cos_sin.data();
  }
  if (scratch.angles.size() < kKeptAngles) scratch.angles.resize(kKeptAngles);
  BlockAngles& made = scratch.angles[scratch.oldest_angles++ % kKeptAngles];
  MakeAngles(rope, begin, columns, made);
  return made.cos_sin.data();
}

int64_t WholeColumns(int64_t n) { return (n + kExactColumns - 1) / kExactColumns * kExactColumns; }

void ExactKeys(const AttendArgs& args, const PageView& page, AttendScratch& scratch,
               AttendTileArgs& tile) {
  const int64_t columns = WholeColumns(args.block_tokens);
  tile.block = static_cast<int>(columns);
  Half* const kt =
      reinterpret_cast<Half*>(TileRoom(scratch.halves, (columns * args.dk + 1) / 2 + kTilePad));
  TransposeHalves(page.exact_k, page.exact_k_stride, page.tokens, args.dk, kt, columns);
  if (args.codec->traits().key_domain == KeyDomain::kPreRope) {
    float* const turned = TileRoom(scratch.kt, columns * args.dk + kTilePad);
    RotateHalves(*args.rope, AnglesOf(*args.rope, page.begin, columns, scratch), kt,
                 WholeColumns(page.tokens), columns, turned);
    tile.kt = turned;
  } else if (tile.rows <= kDirectRows) {
    tile.half_kt = kt;
  } else {
    float* const wide = TileRoom(scratch.kt, columns * args.dk + kTilePad);
    WidenHalves(kt, columns * args.dk, wide);
    tile.kt = wide;
  }
}

void ExactValues(const AttendArgs& args, const PageView& page, AttendScratch& scratch,
                 AttendTileArgs& tile) {
  if (tile.rows <= kDirectRows && args.dv % 16 == 0) {
    tile.half_v = page.exact_v;
    tile.v_stride = page.exact_v_stride;
    return;
  }
  float* const v = TileRoom(scratch.v, args.block_tokens * args.dv + kTilePad);
  for (int64_t t = 0; t < page.tokens; ++t)
    WidenHalves(page.exact_v + t * page.exact_v_stride, args.dv, v + t * args.dv);
  tile.v = v;
}

}  // namespace

void AttendExactRows(const AttendArgs& args, const PageView& page, int64_t first, int64_t last,
                     AttendScratch& scratch, const SoftmaxPartial& partial) {
  AttendTileArgs tile = TileOf(args, page, args.raw_q, first, last, partial);
  ExactKeys(args, page, scratch, tile);
  ExactValues(args, page, scratch, tile);
  AttendTile(tile, scratch);
}

}  // namespace kvring
