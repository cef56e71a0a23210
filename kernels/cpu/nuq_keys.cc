// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/nuq_keys.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/nuq_keys.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/nuq_tile-inl.h"
#include "kernels/cpu/turn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// One channel of a page: where its codes begin, and what they stand for.
template <int kBits>
struct KeyChannel {
  const uint32_t* words;
  int64_t block;
  int offset;
  RowTable<kBits> table;

  HWY_INLINE KeyChannel(const NuqKeysArgs& a, int64_t block_tokens, int channel)
      : words(reinterpret_cast<const uint32_t*>(a.words) + kBits * channel / 32 * block_tokens),
        block(block_tokens),
        offset(kBits * channel % 32),
        table(KeptTables<kBits>{a.tables}.Row(channel)) {}

  // Slots from `t` on.
  HWY_INLINE VF At(int64_t t) const {
    VU code = hn::ShiftRightSame(hn::LoadU(DU(), words + t), offset);
    if constexpr (32 % kBits != 0) {
      if (offset + kBits > 32) {
        const VU next = hn::LoadU(DU(), words + block + t);
        code = hn::Or(code, hn::ShiftLeftSame(next, 32 - offset));
      }
    }
    return table.Number(code);
  }
};

template <int kBits>
void DecodeKeys(const NuqKeysArgs& args) {
  const RopeTable& rope = args.angles->table();
  const int64_t block = args.angles->block_tokens();
  const int planes = rope.planes(), dim = rope.head_dim;
  const bool pairs = rope.pairing == RopePairing::kInterleaved;
  const int step = pairs ? 2 : 1, gap = pairs ? 1 : planes;
  const float* base = args.base;
  const float *cos = args.angles->Cosines(), *sin = args.angles->Sines();
  float* const kt = args.kt;
  for (int p = 0; p < planes; ++p, cos += block, sin += block, base += 2) {
    const int i = p * step, j = i + gap;
    const KeyChannel<kBits> a(args, block, i), b(args, block, j);
    const VF bc = hn::Set(DF(), base[0]), bs = hn::Set(DF(), base[1]);
#pragma GCC unroll 4
    for (int64_t t = 0; t < block; t += kLanes)
      Turn(bc, bs, cos + t, sin + t)
          .Store(a.At(t), b.At(t), kt + i * block + t, kt + j * block + t);
  }
  for (int i = 2 * planes; i < dim; ++i) {
    const KeyChannel<kBits> a(args, block, i);
    for (int64_t t = 0; t < block; t += kLanes) hn::StoreU(a.At(t), DF(), kt + i * block + t);
  }
}

void DecodeKeysTarget(const NuqKeysArgs& args) {
  if (args.bits == 2) return DecodeKeys<2>(args);
  if (args.bits == 3) return DecodeKeys<3>(args);
  DecodeKeys<4>(args);
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(DecodeKeysTarget);

void DecodeNuqKeys(const NuqKeysArgs& args) { HWY_DYNAMIC_DISPATCH(DecodeKeysTarget)(args); }

}  // namespace kvring
#endif  // HWY_ONCE
