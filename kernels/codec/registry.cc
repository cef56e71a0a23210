// SPDX-License-Identifier: Apache-2.0
// The codec table. To add a codec: one file that makes it, one row here.
#include "kernels/codec.h"
#include "kernels/codec/codec_util.h"

namespace kvring {
namespace {

constexpr const char* kRotFlags = "no-mean,no-balance,g64";
constexpr const char* kGroupedFlags = "post-rope";
// Those of tables (nuq_rules.h) in the order of table ids, then those of run time.
constexpr const char* kNuqFlags =
    "post-rope,token-keys,channel-values,cap,qnorm,fisher,unweighted,no-sinks,"
    "exact,token,paper,int,nf,sinks0,sinks1,sinks5";

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
    {"nuq4", "4.3 bits: calibrated codes, keys per channel, values per token (KVQuant)", kNuqFlags,
     MakeNuq, 4, 0, true},
    {"nuq4-0.1%", "as nuq4, 0.1 % of the elements kept apart", kNuqFlags, MakeNuq, 4, 0.001, true},
    {"nuq4-0.5%", "as nuq4, 0.5 % of the elements kept apart", kNuqFlags, MakeNuq, 4, 0.005, true},
    {"nuq4-1%", "as nuq4, 1 % of the elements kept apart", kNuqFlags, MakeNuq, 4, 0.01, true},
    {"nuq3", "3.3 bits: as nuq4", kNuqFlags, MakeNuq, 3, 0, true},
    {"nuq3-0.1%", "as nuq3, 0.1 % of the elements kept apart", kNuqFlags, MakeNuq, 3, 0.001, true},
    {"nuq3-0.5%", "as nuq3, 0.5 % of the elements kept apart", kNuqFlags, MakeNuq, 3, 0.005, true},
    {"nuq3-1%", "as nuq3, 1 % of the elements kept apart", kNuqFlags, MakeNuq, 3, 0.01, true},
    {"nuq2", "2.3 bits: as nuq4", kNuqFlags, MakeNuq, 2, 0, true},
    {"nuq2-0.1%", "as nuq2, 0.1 % of the elements kept apart", kNuqFlags, MakeNuq, 2, 0.001, true},
    {"nuq2-0.5%", "as nuq2, 0.5 % of the elements kept apart", kNuqFlags, MakeNuq, 2, 0.005, true},
    {"nuq2-1%", "as nuq2, 1 % of the elements kept apart", kNuqFlags, MakeNuq, 2, 0.01, true},
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
