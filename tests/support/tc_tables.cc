// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tc_tables.h"

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/numeric.h"

namespace kvring {
namespace {

// [dim][dim] product of three Householder reflections.
std::vector<double> Orthogonal(int dim, uint32_t seed) {
  std::vector<double> u(static_cast<size_t>(dim) * dim, 0.0);
  for (int i = 0; i < dim; ++i) u[i * dim + i] = 1.0;
  for (uint32_t r = 0; r < 3; ++r) {
    const std::vector<float> h = NormalFloats(dim, seed * 3 + r);
    double norm = 0.0;
    for (const float x : h) norm += double{x} * x;
    for (int i = 0; i < dim; ++i) {
      double dot = 0.0;
      for (int j = 0; j < dim; ++j) dot += u[i * dim + j] * h[j];
      for (int j = 0; j < dim; ++j) u[i * dim + j] -= 2.0 * dot * h[j] / norm;
    }
  }
  return u;
}

class Writer {
 public:
  Writer(const TestTcOptions& options, CodecTables* tables) : options_(options), tables_(tables) {}

  void AddSide(const std::string& side, int dim) {
    const uint32_t seed = 100 + sides_++;
    const std::vector<double> u = Orthogonal(dim, seed);
    std::vector<double> a(dim);
    for (int j = 0; j < dim; ++j)  // falling from 1 + uneven to 1 - uneven
      a[j] = (1.0 + options_.uneven) *
             std::pow((1.0 - options_.uneven) / (1.0 + options_.uneven), (j + 0.5) / dim);
    for (const float m : NormalFloats(dim, seed + 1000)) Push(side + "_mean", options_.mean * m);
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) {
        Push(side + "_basis", u[i * dim + j] * a[j]);
        Push(side + "_inverse", u[j * dim + i] / a[i]);
      }
    }
    for (int j = 0; j < dim; ++j) Push(side + "_lambda", a[j] * a[j]);
    Push(side + "_weight", std::pow(1.0 + options_.sides, sides_ % 5));
    Push(side + "_rot", side == "v" && options_.rotated_values ? 1.0 : 0.0);
  }

  void Finish(const KvShape& shape) {
    for (auto& [name, table] : tables_->tensors) {
      const int64_t count = static_cast<int64_t>(table.values.size());
      table.shape = {shape.layers, count / shape.layers};
    }
    Push("served_context", 2048);
    tables_->tensors["tc/served_context"].shape = {1};
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (const auto& [name, table] : tables_->tensors) {
      for (const float value : table.values)
        hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3u;
    }
    tables_->hash = hash;
  }

 private:
  void Push(const std::string& name, double value) {
    tables_->tensors["tc/" + name].values.push_back(static_cast<float>(value));
  }

  TestTcOptions options_;
  CodecTables* tables_;
  uint32_t sides_ = 0;
};

}  // namespace

std::shared_ptr<const CodecTables> TestTcTables(const KvShape& shape,
                                                const TestTcOptions& options) {
  auto tables = std::make_shared<CodecTables>();
  Writer writer(options, tables.get());
  for (int side = 0; side < shape.layers * shape.kv_heads; ++side) {
    writer.AddSide("k", shape.dk);
    writer.AddSide("v", shape.dv);
  }
  writer.Finish(shape);
  return tables;
}

}  // namespace kvring
