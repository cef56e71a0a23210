// SPDX-License-Identifier: Apache-2.0
#include "tests/kvstore/shard_cluster.h"

#include <algorithm>

#include "kvstore/kv_bytes.h"
#include "tests/support/mock_codec.h"

namespace kvring {
namespace {

// A counter-based generator (splitmix64's mixing): the same numbers whatever is asked before.
float Uniform(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = (a << 48) ^ (b << 16) ^ c;
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<float>(x >> 40) * 0x1p-21f - 4.0f;
}

void Fill(int layer, const std::vector<int64_t>& positions, int kind, int64_t row,
          std::vector<float>& out) {
  out.resize(positions.size() * row);
  for (size_t i = 0; i < positions.size(); ++i) {
    for (int64_t c = 0; c < row; ++c) {
      float x = Uniform(layer * 3 + kind, positions[i], c);
      if (c == 1) x *= 64.0f;
      if (c == 2) x = 0.0f;
      out[i * row + c] = x;
    }
  }
}

ShardMap MakeMap(int ranks, int virtual_shards, int block) {
  return *ShardMap::Create(ranks, virtual_shards, block, /*rho=*/ranks / 2);
}

std::vector<int64_t> PositionsOf(const ShardMap& map, int rank, int64_t begin, int64_t end) {
  std::vector<int64_t> own;
  for (int64_t t = begin; t < end; ++t) {
    if (map.Home(t) == rank) own.push_back(t);
  }
  return own;
}

void AppendRowBytes(const Half* rows, int64_t stride, int count, int size, std::string& out) {
  for (int t = 0; t < count; ++t) {
    out.append(reinterpret_cast<const char*>(rows + t * stride), size * sizeof(Half));
  }
}

// What lies beyond PageSize is seen in what it decodes to.
void AppendTiles(const Codec& codec, int layer, int head, const PageView& view, std::string& out) {
  constexpr int kBlock = 64;
  const CodecTraits& traits = codec.traits();
  std::vector<float> k(kBlock * traits.dk), v(kBlock * traits.dv);
  codec.DecodeKeys(layer, head, nullptr, view, k.data());
  codec.DecodeValues(layer, head, nullptr, view, v.data());
  out.append(reinterpret_cast<const char*>(k.data()), k.size() * sizeof(float));
  out.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float));
}

}  // namespace

TestRows MakeTestRows(const KvShape& shape, int layer, const std::vector<int64_t>& positions) {
  TestRows rows;
  Fill(layer, positions, 0, static_cast<int64_t>(shape.kv_heads) * shape.dk, rows.k);
  Fill(layer, positions, 1, static_cast<int64_t>(shape.kv_heads) * shape.dv, rows.v);
  Fill(layer, positions, 2, static_cast<int64_t>(shape.query_heads) * shape.dk, rows.q);
  return rows;
}

std::vector<RopeTable> MakeTestRope(const KvShape& shape) {
  std::vector<RopeTable> rope;
  for (int layer = 0; layer < shape.layers; ++layer) {
    rope.push_back(
        MakeRopeTable(RopePairing::kInterleaved, shape.dk, shape.dk, 1e4 * (layer + 1), {}));
  }
  return rope;
}

std::vector<const RopeTable*> Subject::RopePointers() const {
  std::vector<const RopeTable*> pointers;
  for (const RopeTable& table : rope) pointers.push_back(&table);
  return pointers;
}

std::vector<Subject> MockSubjects() {
  MockCodecOptions base;
  base.shape = {.layers = 2, .query_heads = 4, .kv_heads = 2, .dk = 8, .dv = 6};
  std::vector<Subject> subjects;
  const auto add = [&](const std::string& name, auto change) {
    MockCodecOptions options = base;
    change(options);
    subjects.push_back(
        {name, std::make_shared<MockCodec>(options), options.shape, MakeTestRope(options.shape)});
  };
  add("token", [](MockCodecOptions& o) {});
  add("token-sinks", [](MockCodecOptions& o) { o.sink_tokens = 4; });
  add("page-sinks-pre", [](MockCodecOptions& o) {
    o.page_scoped = true;
    o.sink_tokens = 3;
    o.key_domain = KeyDomain::kPreRope;
  });
  add("prefix-sinks", [](MockCodecOptions& o) {
    o.prefix_tokens = 128;
    o.sink_tokens = 4;
  });
  add("prefix-page", [](MockCodecOptions& o) {
    o.prefix_tokens = 192;
    o.page_scoped = true;
  });
  add("lossless", [](MockCodecOptions& o) { o.lossless = true; });
  return subjects;
}

std::vector<VisibilityRule> AllRules() {
  std::vector<VisibilityRule> rules;
  for (const Visibility kind : {Visibility::kExactCell, Visibility::kPacked, Visibility::kTeacher,
                                Visibility::kExactChunk}) {
    rules.push_back({kind, 256});
  }
  return rules;
}

std::string RuleName(const VisibilityRule& rule) {
  switch (rule.kind) {
    case Visibility::kExactCell:
      return "exact-cell";
    case Visibility::kPacked:
      return "packed";
    case Visibility::kTeacher:
      return "teacher";
    case Visibility::kExactChunk:
      return "exact-chunk";
  }
  return "?";
}

ShardCluster::ShardCluster(const Subject& subject, int ranks, const VisibilityRule& rule,
                           int64_t limit, int virtual_shards)
    : subject_(subject),
      rule_(rule),
      map_(MakeMap(ranks, virtual_shards, subject.shape.block_tokens)) {
  for (int rank = 0; rank < ranks; ++rank) {
    pools_.push_back(std::make_shared<PagePool>(limit));
    SequenceShardOptions options;
    options.codec = subject.codec;
    options.shape = subject.shape;
    options.rope = subject.RopePointers();
    options.rule = rule;
    options.pool = pools_.back().get();
    options.rank = rank;
    shards_.push_back(*SequenceShard::Create(options, map_));
  }
}

ShardCluster::ShardCluster(const ShardCluster& other, int64_t length)
    : subject_(other.subject_),
      rule_(other.rule_),
      map_(other.map_),
      pools_(other.pools_),
      length_(length) {}

absl::Status ShardCluster::Freeze(int layer) {
  const int64_t row = subject_.shape.kv_heads * subject_.codec->SumFloats();
  std::vector<float> sums;
  for (int64_t block = 0; block < shards_[0]->prefix_blocks(); ++block) {
    const int home = map_.Home(block * map_.block_tokens());
    const float* own = shards_[home]->BlockSums(layer, block);
    sums.insert(sums.end(), own, own + row);
  }
  for (const auto& shard : shards_) KVRING_RETURN_IF_ERROR(shard->Freeze(layer, sums.data()));
  return absl::OkStatus();
}

absl::Status ShardCluster::Layer(int layer, int64_t end, int parts) {
  for (size_t rank = 0; rank < shards_.size(); ++rank) {
    const std::vector<int64_t> own = PositionsOf(map_, static_cast<int>(rank), length_, end);
    for (int part = 0; part < parts; ++part) {
      const std::vector<int64_t> some(own.begin() + own.size() * part / parts,
                                      own.begin() + own.size() * (part + 1) / parts);
      const TestRows rows = MakeTestRows(subject_.shape, layer + 100 * branch_, some);
      AppendRows append{some, rows.k.data(), rows.v.data(), rows.q.data()};
      KVRING_RETURN_IF_ERROR(shards_[rank]->Append(layer, append));
    }
  }
  const int64_t prefix = subject_.codec->traits().prefix_tokens;
  if (prefix > 0 && length_ < prefix && end >= prefix) KVRING_RETURN_IF_ERROR(Freeze(layer));
  for (const auto& shard : shards_) {
    KVRING_RETURN_IF_ERROR(shard->EncodeReady(layer, end));
    shard->CloseCells(layer, end);
  }
  return absl::OkStatus();
}

absl::Status ShardCluster::Step(int64_t end, int parts) {
  for (int layer = 0; layer < subject_.shape.layers; ++layer) {
    KVRING_RETURN_IF_ERROR(Layer(layer, end, parts));
  }
  length_ = end;
  return absl::OkStatus();
}

absl::Status ShardCluster::Run(int64_t end, int64_t chunk) {
  while (length_ < end) KVRING_RETURN_IF_ERROR(Step(std::min(end, length_ + chunk)));
  return absl::OkStatus();
}

absl::Status ShardCluster::Truncate(int64_t length) {
  absl::Status first = shards_[0]->Truncate(length);
  for (size_t rank = 1; rank < shards_.size(); ++rank) {
    const absl::Status other = shards_[rank]->Truncate(length);
    if (other != first) return absl::InternalError("ranks answer a cut in two ways");
  }
  if (first.ok()) length_ = length;
  return first;
}

absl::StatusOr<std::unique_ptr<ShardCluster>> ShardCluster::Fork(int64_t length) const {
  std::unique_ptr<ShardCluster> fork(new ShardCluster(*this, length));
  for (const auto& shard : shards_) {
    KVRING_ASSIGN_OR_RETURN(auto own, shard->Fork(length));
    fork->shards_.push_back(std::move(own));
  }
  return fork;
}

ShardCluster::Content ShardCluster::Read() const {
  Content content;
  const KvShape& shape = subject_.shape;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const int64_t page_bytes = subject_.codec->PageSize(layer, head).total();
      for (int v = 0; v < map_.virtual_shards(); ++v) {
        std::vector<PageView> views;
        for (const auto& shard : shards_) shard->Pages(layer, head, v, views);
        for (const PageView& view : views) {
          std::string& bytes = content[{layer, head, view.begin}];
          bytes = absl::StrCat(view.tokens, " tokens ", view.sinks, " sinks;");
          if (view.packed) bytes.append(reinterpret_cast<const char*>(view.packed), page_bytes);
          if (view.packed && subject_.codec->traits().growing_page) {
            AppendTiles(*subject_.codec, layer, head, view, bytes);
          }
          bytes += ";";
          if (view.exact_k) {
            AppendRowBytes(view.exact_k, view.exact_k_stride, view.tokens, shape.dk, bytes);
            AppendRowBytes(view.exact_v, view.exact_v_stride, view.tokens, shape.dv, bytes);
          }
          bytes += ";";
          AppendRowBytes(view.sink_k, view.sink_k_stride, view.sinks, shape.dk, bytes);
          AppendRowBytes(view.sink_v, view.sink_v_stride, view.sinks, shape.dv, bytes);
        }
      }
      for (const auto& shard : shards_) {
        const float* state = shard->State(layer, head);
        if (state == nullptr) continue;
        std::string bytes(reinterpret_cast<const char*>(state), subject_.codec->StateFloats() * 4);
        std::string& known = content[{layer, head, -1}];
        known = known.empty() || known == bytes ? bytes : "ranks differ";
      }
    }
  }
  return content;
}

int64_t ShardCluster::PlannedPages(int slot) const {
  const SlotSizes sizes(*subject_.codec, subject_.shape);
  const LayerSlots slots = SlotsAtRest(*subject_.codec, map_, slot, length_, rule_);
  int64_t bytes = 0;
  for (const int64_t size : sizes.pages) bytes += slots.pages * size;
  return bytes;
}

std::string ShardCluster::CheckBytes(bool alone) const {
  const Codec& codec = *subject_.codec;
  for (size_t rank = 0; rank < shards_.size(); ++rank) {
    const SequenceShard& shard = *shards_[rank];
    const int slot = map_.SlotOfRank(static_cast<int>(rank));
    const int64_t expected = KvBytes(codec, subject_.shape, map_, slot, length_, rule_);
    const int64_t pages = PlannedPages(slot);
    const bool grows = codec.traits().growing_page;  // KvBytes knows the smallest pages
    if (shard.bytes() - shard.page_bytes() != expected - pages || shard.page_bytes() < pages ||
        (shard.page_bytes() != pages && !grows)) {
      return absl::StrCat(subject_.name, " ", RuleName(rule_), " rank ", rank, " of ",
                          shards_.size(), ", length ", length_, ": holds ", shard.bytes(),
                          " bytes, ", shard.page_bytes(), " in pages, KvBytes says ", expected,
                          ", ", pages, " in pages");
    }
    int64_t state = 0;
    for (int layer = 0; layer < subject_.shape.layers; ++layer) {
      if (shard.frozen(layer)) state += codec.StateBytes() * subject_.shape.kv_heads;
    }
    if (alone && pools_[rank]->bytes_in_use() != shard.bytes() - state) {
      return absl::StrCat(subject_.name, ": the pool has ", pools_[rank]->bytes_in_use(),
                          " bytes in use, the shard holds ", shard.bytes() - state);
    }
  }
  return "";
}

void ShardCluster::PoisonUnused() {
  const KvShape& shape = subject_.shape;
  const auto poison = [](const Half* rows, int64_t stride, int from, int to, int size) {
    for (int t = from; t < to; ++t) {
      std::fill_n(const_cast<Half*>(rows) + t * stride, size, Half{0x7e00});
    }
  };
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::vector<PageView> views;
      for (int v = 0; v < map_.virtual_shards(); ++v) {
        for (const auto& shard : shards_) shard->Pages(layer, head, v, views);
      }
      for (const PageView& view : views) {
        if (view.exact_k == nullptr) continue;
        poison(view.exact_k, view.exact_k_stride, view.tokens, shape.block_tokens, shape.dk);
        poison(view.exact_v, view.exact_v_stride, view.tokens, shape.block_tokens, shape.dv);
      }
    }
  }
}

}  // namespace kvring
