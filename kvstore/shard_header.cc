// SPDX-License-Identifier: Apache-2.0
#include "kvstore/shard_header.h"

#include <bit>
#include <cstring>

#include "runtime/base/hash.h"

namespace kvring {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian, memory too");

constexpr int64_t kHeaderBytes = 128;
constexpr int64_t kHeaderHashAt = 32;
constexpr uint32_t kFormatVersion = 1;

template <typename T>
void Put(std::vector<uint8_t>& bytes, int64_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <typename T>
T Get(std::span<const uint8_t> bytes, int64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

uint64_t HeaderHash(std::span<const uint8_t> head) {
  std::vector<uint8_t> copy(head.begin(), head.end());
  Put<uint64_t>(copy, kHeaderHashAt, 0);
  return Hash64(copy.data(), static_cast<int64_t>(copy.size()));
}

void PutShape(std::vector<uint8_t>& head, const KvShape& shape) {
  const int32_t fields[] = {shape.layers, shape.query_heads, shape.kv_heads,
                            shape.dk,     shape.dv,          shape.block_tokens};
  std::memcpy(head.data() + 48, fields, sizeof(fields));
}

KvShape GetShape(std::span<const uint8_t> head) {
  KvShape shape;
  shape.layers = Get<int32_t>(head, 48);
  shape.query_heads = Get<int32_t>(head, 52);
  shape.kv_heads = Get<int32_t>(head, 56);
  shape.dk = Get<int32_t>(head, 60);
  shape.dv = Get<int32_t>(head, 64);
  shape.block_tokens = Get<int32_t>(head, 68);
  return shape;
}

absl::Status Damaged(const std::string& what) {
  return absl::DataLossError(absl::StrCat("bytes of a KV shard: ", what));
}

// The bytes before the payload, checked as a whole.
absl::StatusOr<std::span<const uint8_t>> CheckedHead(std::span<const uint8_t> bytes,
                                                     const std::string& magic) {
  if (static_cast<int64_t>(bytes.size()) < kHeaderBytes) {
    return Damaged(absl::StrCat(bytes.size(), " bytes, the header alone has ", kHeaderBytes));
  }
  if (std::memcmp(bytes.data(), magic.data(), 8) != 0) {
    return Damaged(absl::StrCat("they do not begin with ", magic));
  }
  const uint32_t version = Get<uint32_t>(bytes, 8);
  if (version != kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "bytes of a KV shard: format version ", version, ", this program reads ", kFormatVersion));
  }
  const uint32_t head_bytes = Get<uint32_t>(bytes, 12);
  if (head_bytes < kHeaderBytes || head_bytes > bytes.size()) {
    return Damaged(absl::StrCat("header of ", head_bytes, " bytes in ", bytes.size()));
  }
  const std::span<const uint8_t> head = bytes.first(head_bytes);
  if (Get<uint64_t>(bytes, kHeaderHashAt) != HeaderHash(head)) {
    return Damaged("the checksum of the header does not hold");
  }
  return head;
}

template <typename T>
absl::Status Same(const char* what, const T& theirs, const T& ours) {
  if (theirs == ours) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("KV shard with another ", what, ": ", theirs, ", here ", ours));
}

}  // namespace

std::vector<uint8_t> WithHeader(const ShardHeader& header, const std::vector<uint8_t>& payload) {
  const int64_t names = static_cast<int64_t>(header.codec_id.size() + header.order.size());
  const int64_t head_bytes = (kHeaderBytes + names + 7) / 8 * 8;
  std::vector<uint8_t> bytes(head_bytes);
  std::memcpy(bytes.data(), header.magic.data(), 8);
  Put<uint32_t>(bytes, 8, kFormatVersion);
  Put<uint32_t>(bytes, 12, static_cast<uint32_t>(head_bytes));
  Put<uint64_t>(bytes, 16, payload.size());
  Put<uint64_t>(bytes, 24, Hash64(payload.data(), static_cast<int64_t>(payload.size())));
  Put<int64_t>(bytes, 40, header.length);
  PutShape(bytes, header.shape);
  Put<int32_t>(bytes, 72, header.virtual_shard);
  Put<int32_t>(bytes, 76, header.virtual_shards);
  Put<int32_t>(bytes, 80, header.codec_version);
  Put<uint32_t>(bytes, 84, static_cast<uint32_t>(header.rule.kind));
  Put<int64_t>(bytes, 88, header.rule.cell);
  Put<int64_t>(bytes, 96, header.gone);
  Put<uint32_t>(bytes, 104, header.frozen ? 1 : 0);
  Put<uint16_t>(bytes, 108, static_cast<uint16_t>(header.codec_id.size()));
  Put<uint16_t>(bytes, 110, static_cast<uint16_t>(header.order.size()));
  Put<uint64_t>(bytes, 112, header.tables_hash);
  const std::string text = header.codec_id + header.order;
  std::memcpy(bytes.data() + kHeaderBytes, text.data(), text.size());
  Put<uint64_t>(bytes, kHeaderHashAt, HeaderHash(bytes));
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

absl::StatusOr<ParsedShard> ParseShard(std::span<const uint8_t> bytes, const std::string& magic) {
  KVRING_ASSIGN_OR_RETURN(const std::span<const uint8_t> head, CheckedHead(bytes, magic));
  ParsedShard parsed;
  parsed.payload = bytes.subspan(head.size());
  if (Get<uint64_t>(head, 16) != parsed.payload.size()) {
    return Damaged(absl::StrCat("payload of ", parsed.payload.size(), " bytes, the header says ",
                                Get<uint64_t>(head, 16)));
  }
  const int64_t payload_bytes = static_cast<int64_t>(parsed.payload.size());
  if (Get<uint64_t>(head, 24) != Hash64(parsed.payload.data(), payload_bytes)) {
    return Damaged("the checksum of the payload does not hold");
  }
  const size_t id_bytes = Get<uint16_t>(head, 108), order_bytes = Get<uint16_t>(head, 110);
  if (kHeaderBytes + id_bytes + order_bytes > head.size())
    return Damaged("names beyond the header");
  ShardHeader& header = parsed.header;
  header.magic = magic;
  header.length = Get<int64_t>(head, 40);
  header.shape = GetShape(head);
  header.virtual_shard = Get<int32_t>(head, 72);
  header.virtual_shards = Get<int32_t>(head, 76);
  header.codec_version = Get<int32_t>(head, 80);
  header.rule.kind = static_cast<Visibility>(Get<uint32_t>(head, 84));
  header.rule.cell = Get<int64_t>(head, 88);
  header.gone = Get<int64_t>(head, 96);
  header.frozen = Get<uint32_t>(head, 104) != 0;
  header.tables_hash = Get<uint64_t>(head, 112);
  const char* const names = reinterpret_cast<const char*>(head.data()) + kHeaderBytes;
  header.codec_id.assign(names, id_bytes);
  header.order.assign(names + id_bytes, order_bytes);
  return parsed;
}

absl::Status CheckSame(const ShardHeader& theirs, const ShardHeader& ours) {
  KVRING_RETURN_IF_ERROR(Same("codec", theirs.codec_id, ours.codec_id));
  KVRING_RETURN_IF_ERROR(Same("codec version", theirs.codec_version, ours.codec_version));
  KVRING_RETURN_IF_ERROR(Same("calibration (hash of its tables)", HashHex(theirs.tables_hash),
                              HashHex(ours.tables_hash)));
  KVRING_RETURN_IF_ERROR(Same("order of codes", theirs.order, ours.order));
  const KvShape& a = theirs.shape;
  const KvShape& b = ours.shape;
  KVRING_RETURN_IF_ERROR(Same("number of layers", a.layers, b.layers));
  KVRING_RETURN_IF_ERROR(Same("number of query heads", a.query_heads, b.query_heads));
  KVRING_RETURN_IF_ERROR(Same("number of KV heads", a.kv_heads, b.kv_heads));
  KVRING_RETURN_IF_ERROR(Same("size of keys", a.dk, b.dk));
  KVRING_RETURN_IF_ERROR(Same("size of values", a.dv, b.dv));
  KVRING_RETURN_IF_ERROR(Same("block", a.block_tokens, b.block_tokens));
  KVRING_RETURN_IF_ERROR(
      Same("number of virtual shards", theirs.virtual_shards, ours.virtual_shards));
  KVRING_RETURN_IF_ERROR(Same("visibility rule", static_cast<int>(theirs.rule.kind),
                              static_cast<int>(ours.rule.kind)));
  return Same("cell", theirs.rule.cell, ours.rule.cell);
}

}  // namespace kvring
