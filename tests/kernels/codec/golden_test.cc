// SPDX-License-Identifier: Apache-2.0
// The bytes of one page per codec, against an independent encoder in numpy (tests/golden/codec/pages.py): a change of the
// format, wanted or not, shows here.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/kernels/codec/codec_harness.h"

namespace kvring {
namespace {

struct GoldenPage {
  size_t bytes = 0;
  std::string hash, head;
};

std::map<std::string, GoldenPage> ReadGolden() {
  std::map<std::string, GoldenPage> pages;
  std::ifstream file("tests/golden/codec/pages.txt");
  std::string name;
  GoldenPage page;
  while (file >> name >> page.bytes >> page.hash >> page.head) pages[name] = page;
  return pages;
}

// The rows of pages.py.
float Noise(uint32_t i) {
  i *= 2654435761u;
  i ^= i >> 15;
  i *= 2246822519u;
  return (static_cast<int>(i >> 13 & 1023) - 512) / 256.0f;
}

std::string Hex(uint64_t x, int digits) {
  char text[17];
  std::snprintf(text, sizeof(text), "%0*llx", digits, static_cast<unsigned long long>(x));
  return text;
}

std::string Fnv1a(const std::vector<uint8_t>& data) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (uint8_t byte : data) hash = (hash ^ byte) * 0x100000001b3u;
  return Hex(hash, 16);
}

constexpr int kDim = 64, kTokens = 128, kQueryHeads = 2;

class GoldenRows {
 public:
  GoldenRows() : k(kTokens * kDim), v(k.size()), q(kTokens * kQueryHeads * kDim) {
    for (size_t i = 0; i < k.size(); ++i)
      k[i] = Noise(1000 + i) + static_cast<int>(i % kDim % 5) - 2;
    for (size_t i = 0; i < v.size(); ++i) v[i] = Noise(500000 + i);
    for (size_t i = 0; i < q.size(); ++i) q[i] = Noise(900000 + i);
  }
  std::vector<float> k, v, q;
};

std::vector<float> StateOf(const Codec& codec, const GoldenRows& rows) {
  std::vector<float> state(codec.StateFloats());
  std::vector<float> sums(2 * codec.SumFloats(), 0.0f);
  std::vector<const float*> blocks;
  for (int b = 0; b < 2; ++b) {
    codec.Observe({0, b * 64, 64, &rows.k[b * 64 * kDim], &rows.q[b * 64 * kQueryHeads * kDim]},
                  sums.data() + b * codec.SumFloats());
    blocks.push_back(sums.data() + b * codec.SumFloats());
  }
  codec.Freeze(0, 0, blocks, state.data());
  return state;
}

// The tables of pages.py: Hadamard / 8 as basis, deviations that are powers of two.
std::shared_ptr<const CodecTables> TcTablesOf(const KvShape& shape) {
  auto tables = std::make_shared<CodecTables>(*TestTcTables(shape));
  for (const std::string side : {"k", "v"}) {
    for (int i = 0; i < kDim; ++i) {
      const float deviation = std::ldexp(2.0f, -(i / 16));
      tables->tensors["tc/" + side + "_mean"].values[i] =
          side == "k" ? static_cast<float>(i % 5 - 2) : 0;
      tables->tensors["tc/" + side + "_lambda"].values[i] = deviation * deviation;
      for (int j = 0; j < kDim; ++j) {
        const float entry = std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 0.125f : -0.125f;
        tables->tensors["tc/" + side + "_basis"].values[i * kDim + j] = entry;
        tables->tensors["tc/" + side + "_inverse"].values[i * kDim + j] = entry;
      }
    }
    tables->tensors["tc/" + side + "_weight"].values[0] = side == "k" ? 1.0f : 0.25f;
  }
  return tables;
}

// The tables of pages.py.
std::shared_ptr<const CodecTables> TablesOf(const CodecRow& row, const KvShape& shape) {
  if (!row.calibrated) return nullptr;
  if (row.rate > 0) return TcTablesOf(shape);
  const int codes = 1 << row.bits;
  std::vector<float> lo, hi, cent;
  for (int c = 0; c < kDim; ++c) {
    lo.push_back(static_cast<float>(c % 5 - 2) - 1.9375f);
    hi.push_back(static_cast<float>(c % 5 - 2) + 1.9375f);
  }
  for (int j = 0; j < codes; ++j) {
    const float x = (2.0f * j + 1) / codes - 1;
    cent.push_back(x * (0.75f + 0.25f * x * x));
  }
  const float k_slots = row.outliers == 0      ? 0
                        : row.outliers < 0.002 ? 21
                        : row.outliers < 0.007 ? 59
                                               : 100;
  const float v_slots = row.outliers == 0 ? 0 : 150;
  return WithNuqTensors(*TestNuqTables(shape, {}, row.name), row.name,
                        {{"k_lo", lo},
                         {"k_hi", hi},
                         {"k_cent", cent},
                         {"v_cent", cent},
                         {"k_slots", {k_slots}},
                         {"v_slots", {v_slots}}});
}

// Rows of the table, and their forms with options that have a page: "rot3:trellis".
std::vector<std::string> Ids(const std::map<std::string, GoldenPage>& golden) {
  std::vector<std::string> ids;
  for (const CodecRow& row : AllCodecs()) ids.push_back(row.name);
  for (const auto& [id, page] : golden) {
    if (id.find(':') != std::string::npos) ids.push_back(id);
  }
  return ids;
}

TEST(Golden, PagesOfEveryCodec) {
  const std::map<std::string, GoldenPage> golden = ReadGolden();
  const GoldenRows rows;
  const RopeTable rope = MakeRopeTable(RopePairing::kInterleaved, kDim, kDim, 10000.0, {});
  for (const std::string& id : Ids(golden)) {
    ASSERT_TRUE(golden.contains(id)) << id << " has no golden page: add it to pages.py";
    const GoldenPage& expected = golden.at(id);
    const size_t name = std::min(id.find(':'), id.size());
    const CodecRow& row = *FindCodec(id.substr(0, name));
    CodecOptions options;
    if (name < id.size()) options.flags = {id.substr(name + 1)};
    options.shape = {1, kQueryHeads, 1, kDim, kDim, 64};
    options.rope = {&rope};
    options.tables = TablesOf(row, options.shape);
    const CodecMade made = row.make(row, options);
    ASSERT_NE(made.codec, nullptr) << made.error;
    const std::vector<float> state = StateOf(*made.codec, rows);
    std::vector<uint8_t> page(made.codec->PageSize(0, 0).total(), 0x5a);
    uint8_t* const pages[] = {page.data()};
    EncodeArgs args;
    args.block_begin = 64, args.count = 64;
    args.k = &rows.k[64 * kDim], args.v = &rows.v[64 * kDim];
    args.state = state.empty() ? nullptr : state.data();
    args.pages = pages;
    ASSERT_FALSE(made.codec->Encode(args));
    std::string head;
    for (int i = 0; i < 16; ++i) head += Hex(page[i], 2);
    EXPECT_EQ(page.size(), expected.bytes) << id;
    EXPECT_EQ(head, expected.head) << id;
    EXPECT_EQ(Fnv1a(page), expected.hash) << id;
  }
}

}  // namespace
}  // namespace kvring
