// SPDX-License-Identifier: Apache-2.0
// Calibrated tables for tests of nuq: plausible thresholds and datatypes without a model (kvquant spec 2 and 3), fitted
// plainly and apart from the project's own calibration.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec_tables.h"

namespace kvring {

// Tables of every calibrated row of the registry, under the table options among `flags` (options that act at run time alone
// are passed over), for rows that are about N(0, 1): thresholds differ by channel and layer, slot counts by head. The same
// bits at every call. `only`: tables of that row alone.
std::shared_ptr<const CodecTables> TestNuqTables(const KvShape& shape,
                                                 const std::vector<std::string>& flags = {},
                                                 const std::string& only = "");

// Tables of one row of the registry from rows k [tokens][kv_heads * dk] (in the codec's key domain) and
// v [tokens][kv_heads * dv], the same for every layer. Thresholds are the rows' own quantiles, so a share `outliers` of them
// lies outside; slots leave room for four deviations.
struct NuqSample {
  std::span<const float> k, v;
};
std::shared_ptr<const CodecTables> TestNuqTablesOfRows(const KvShape& shape,
                                                       const std::string& name,
                                                       const std::vector<std::string>& flags,
                                                       const NuqSample& sample);

// A copy of `tables` with tensors of one table id given outright: name without the id ("k_lo") to values. A tensor that is
// there keeps its shape (its product must fit), a new one becomes a vector; the hash follows.
std::shared_ptr<const CodecTables> WithNuqTensors(
    const CodecTables& tables, const std::string& id,
    const std::map<std::string, std::vector<float>>& tensors);

}  // namespace kvring
