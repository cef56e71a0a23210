// SPDX-License-Identifier: Apache-2.0
// The codec table. To add a codec: one file that makes it, one row here.
#include <array>

#include "kernels/codec.h"
#include "kernels/codec/codec_util.h"
#include "kernels/codec/tc_bits.h"

namespace kvring {
namespace {

constexpr const char* kRotFlags = "no-mean,no-balance,g64,trellis";
constexpr const char* kRot8Flags = "no-mean,no-balance,g64";
constexpr const char* kGroupedFlags = "post-rope";
// Those of tables (nuq_rules.h) in the order of table ids, then those of run time.
constexpr const char* kNuqFlags =
    "post-rope,token-keys,channel-values,cap,qnorm,fisher,unweighted,no-sinks,"
    "exact,token,paper,int,nf,sinks0,sinks1,sinks5";

constexpr const char* kTcFlags = "static,adapt,trellis";

constexpr CodecRow TcRow(const char* name, const char* summary, int rate) {
  return {name, summary, kTcFlags, MakeTc, rate / 100, 0, /*calibrated=*/true, rate};
}

constexpr CodecRow kCodecs[] = {
    {"rot4", "4.1 bits: rotated keys and values, no calibration (default)", kRotFlags, MakeRot, 4},
    {"rot8", "8.1 bits: as rot4, practically exact", kRot8Flags, MakeRot, 8},
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
    TcRow("tc4", "4.1 bits: calibrated transform code, best per byte; tc@BITS for any 1 to 6", 400),
    TcRow("tc3", "3.1 bits: as tc4", 300),
    TcRow("tc2.5", "2.6 bits: as tc4", 250),
    TcRow("tc2", "2.1 bits: as tc4", 200),
    TcRow("tc1.5", "1.6 bits: as tc4", 150),
};

// tc@1 to tc@6 in hundredths.
constexpr int kLowestRate = 100, kRates = 501;
struct RateName {
  char text[8] = {};
};

constexpr std::array<RateName, kRates> MakeRateNames() {
  std::array<RateName, kRates> names;
  for (int i = 0; i < kRates; ++i) {
    const int rate = kLowestRate + i;
    char* to = names[i].text;
    for (const char c : {'t', 'c', '@'}) *to++ = c;
    *to++ = static_cast<char>('0' + rate / 100);
    if (rate % 100 == 0) continue;
    *to++ = '.';
    *to++ = static_cast<char>('0' + rate / 10 % 10);
    if (rate % 10 != 0) *to++ = static_cast<char>('0' + rate % 10);
  }
  return names;
}
constexpr std::array<RateName, kRates> kRateNames = MakeRateNames();

constexpr std::array<CodecRow, kRates> MakeRateRows() {
  std::array<CodecRow, kRates> rows{};
  for (int i = 0; i < kRates; ++i)
    rows[i] = TcRow(kRateNames[i].text, "as tc4, at any number of bits", kLowestRate + i);
  return rows;
}
constexpr std::array<CodecRow, kRates> kRateRows = MakeRateRows();

}  // namespace

std::span<const CodecRow> AllCodecs() { return kCodecs; }

const CodecRow* FindCodec(const std::string& name) {
  for (const CodecRow& row : kCodecs) {
    if (name == row.name) return &row;
  }
  const int rate = ParseTcRate(name);
  if (rate == 0 || name.find('@') == std::string::npos) return nullptr;
  for (const CodecRow& row : kCodecs) {
    if (row.rate == rate) return &row;  // "tc@2.5" is tc2.5
  }
  return &kRateRows[rate - kLowestRate];
}

}  // namespace kvring
