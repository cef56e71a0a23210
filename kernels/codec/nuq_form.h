// SPDX-License-Identifier: Apache-2.0
// What a name of nuq asks for, and the calibrated tables it needs, checked against the shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec/nuq_rules.h"

namespace kvring {

enum class NuqDatatype : uint8_t { kCalibrated, kInteger, kNormal };

struct NuqForm {
  int bits = 0;
  double fraction = 0.0;    // of outliers, both tails
  NuqTableOptions options;  // those that chose the tables
  bool exact = false;       // outliers in lists of any length in the page of KV head 0
  bool token = false;       // one scale a token over all heads
  NuqDatatype datatype = NuqDatatype::kCalibrated;
  int sinks = kNuqSinks;
  std::string table_id;
  int codes() const { return 1 << bits; }
};

// The form of a row of the registry with these options; *error says what excludes each other, else stays "".
NuqForm ParseNuqForm(const CodecRow& row, const CodecOptions& options, std::string* error);

// Keys or values. D = heads * dim, C = 2^bits.
struct NuqSideTables {
  int dim = 0, heads = 0, codes = 0;
  bool by_channel = false;       // the scale belongs to a channel and is known beforehand
  std::vector<float> lo, hi;     // [layers][D], by_channel: thresholds
  std::vector<float> z, s;       // [layers][D], by_channel: their middle and half width
  std::vector<float> centroids;  // [layers][C] ascending: codes are chosen by these
  std::vector<float> decode;     // [layers][C]: what codes decode to
  std::vector<int> slots;        // [layers][heads] of one page of this block size
  std::vector<double> outliers;  // [layers] expected of a token, all heads; exact container alone

  int width() const { return dim * heads; }
};

struct NuqTables {
  NuqSideTables k, v;
};

// Returns what is missing or does not fit, or "".
std::string LoadNuqTables(const CodecRow& row, const CodecOptions& options, const NuqForm& form,
                          NuqTables* tables);

}  // namespace kvring
