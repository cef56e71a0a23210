// SPDX-License-Identifier: Apache-2.0
// The header that shard_io.h describes: written, and read with nothing in it trusted. kvstore's own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/visibility.h"
#include "runtime/base/status.h"

namespace kvring {

struct ShardHeader {
  std::string magic;  // 8 bytes
  int64_t length = 0;
  KvShape shape;
  int32_t virtual_shard = 0, virtual_shards = 0;
  int32_t codec_version = 0;
  VisibilityRule rule;
  int64_t gone = 0;
  bool frozen = false;
  uint64_t tables_hash = 0;
  std::string codec_id, order;
};

std::vector<uint8_t> WithHeader(const ShardHeader& header, const std::vector<uint8_t>& payload);

// The header and where its payload lies in `bytes`. DATA_LOSS when anything about the bytes is wrong.
struct ParsedShard {
  ShardHeader header;
  std::span<const uint8_t> payload;
};
absl::StatusOr<ParsedShard> ParseShard(std::span<const uint8_t> bytes, const std::string& magic);

// FAILED_PRECONDITION naming the first field that differs, with both values. virtual_shard, length, gone and frozen are
// not compared: they belong to the bytes.
absl::Status CheckSame(const ShardHeader& theirs, const ShardHeader& ours);

}  // namespace kvring
