// SPDX-License-Identifier: Apache-2.0
// The codec table. To add a codec: one file that makes it, one row here.
#include "kernels/codec.h"
#include "kernels/codec/codec_util.h"

namespace kvring {
namespace {

constexpr const char* kRotFlags = "no-mean,no-balance,g64";
constexpr const char* kGroupedFlags = "post-rope";

constexpr CodecRow kCodecs[] = {
    {"rot4", "4.1 bits: rotated keys and values, no calibration (default)", kRotFlags, MakeRot, 4},
    {"rot8", "8.1 bits: as rot4, practically exact", kRotFlags, MakeRot, 8},
    {"rot3", "3.1 bits: as rot4", kRotFlags, MakeRot, 3},
    {"rot2", "2.1 bits: as rot4", kRotFlags, MakeRot, 2},
    {"f16", "16 bits: IEEE half precision", "", MakeF16, 16},
    {"f32", "32 bits: single precision", "", MakeF32, 32},
    {"int4", "4.5 bits: uniform, keys per channel and page, values per token", kGroupedFlags,
     MakeInt, 4},
    {"int3", "3.5 bits: as int4", kGroupedFlags, MakeInt, 3},
    {"int2", "2.5 bits: as int4", kGroupedFlags, MakeInt, 2},
    {"nf4", "4.5 bits: normal-float codes, laid out as int4", kGroupedFlags, MakeNf, 4},
    {"nf3", "3.5 bits: as nf4", kGroupedFlags, MakeNf, 3},
    {"nf2", "2.5 bits: as nf4", kGroupedFlags, MakeNf, 2},
};

}  // namespace

std::span<const CodecRow> AllCodecs() { return kCodecs; }

const CodecRow* FindCodec(const std::string& name) {
  for (const CodecRow& row : kCodecs) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

}  // namespace kvring
