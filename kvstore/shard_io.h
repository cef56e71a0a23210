// SPDX-License-Identifier: Apache-2.0
// One virtual shard of a sequence as bytes, and the sequence's codec state as bytes: what checkpoints, stored documents
// and transfers carry. A shard may be read by any number of ranks: the layout's V and B must agree, N and rho need not.
//
// All numbers little-endian. Header, 128 bytes, then the two names (codec id, order), zeros up to a multiple of 8, payload:
//     0  8  magic "KVRSHARD" (a virtual shard) or "KVRSTATE" (a sequence's state)
//     8  4  format version, 1
//    12  4  bytes before the payload: header, names, zeros
//    16  8  bytes of the payload
//    24  8  XXH3-64 of the payload
//    32  8  XXH3-64 of the bytes before the payload, with zeros in this field
//    40  8  length of the sequence, tokens
//    48 24  layers, query_heads, kv_heads, dk, dv, block_tokens (4 bytes each)
//    72  8  virtual shard (0 in a state), virtual shards (4 bytes each)
//    80  4  version of the codec's page bytes
//    84  4  visibility rule (0 exact-cell, 1 packed, 2 teacher, 3 exact-chunk)
//    88  8  cell of the rule, tokens
//    96  8  gone: blocks of the sequence before this one have no exact rows
//   104  4  1 when the sequence's state is frozen, else 0
//   108  2  bytes of the codec id       110  2  bytes of the order's name
//   112  8  hash of the calibrated tables that the pages need, 0: none
//   120  8  zeros
// "Order" names the arrangement of codes inside a page (each backend has its own); a reader that has another refuses.
//
// Payload of a shard: for each layer, for each block of the virtual shard, ascending:
//     4 tokens | 4 encoded slots | 4 first slot with an exact row | 4 parts: 1 exact rows, 2 pages, 4 statistics, 8 sinks
//     then the parts that exist: exact rows from the first on, K [n][kv_heads][dk] then V [n][kv_heads][dv] as fp16; pages of
//     heads 0, 1, .. without padding; rows of the statistics, k [tokens][kv_heads][dk] then q [tokens][query_heads][dk] as
//     fp16; sinks, K [min(sinks, tokens)][kv_heads][dk] then V likewise.
// Payload of a state: [layers][kv_heads][StateFloats()] as fp16.
//
// Export is for the time between steps. Codecs whose pages are not self-contained (traits.shared_page) have no bytes:
// UNIMPLEMENTED. Errors: FAILED_PRECONDITION when codec, tables, shape, layout, rule or order differ, with both
// values; DATA_LOSS when a checksum or a length does not hold. A refused import leaves the shard as it was.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvstore/sequence_shard.h"

namespace kvring {

// The order of codes that the CPU backend writes.
inline constexpr char kCpuPageOrder[] = "cpu-1";

absl::StatusOr<std::vector<uint8_t>> ExportShard(const SequenceShard& shard, int virtual_shard,
                                                 const std::string& order = kCpuPageOrder);
// INVALID_ARGUMENT when the virtual shard lives on another rank or is not empty here.
absl::Status ImportShard(std::span<const uint8_t> bytes, SequenceShard& shard,
                         const std::string& order = kCpuPageOrder);

// FAILED_PRECONDITION before the state is frozen.
absl::StatusOr<std::vector<uint8_t>> ExportState(const SequenceShard& shard);
absl::Status ImportState(std::span<const uint8_t> bytes, SequenceShard& shard);

}  // namespace kvring
