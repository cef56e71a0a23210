// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/tc_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/codec/tc_bits.h"

namespace kvring {
namespace {

const std::vector<float>& Values(const CodecTables& tables, const std::string& name) {
  return tables.Find(std::string(kTcTableId) + "/" + name)->values;
}

std::string CheckTensor(const CodecTables& tables, const std::string& name, int64_t count,
                        bool positive) {
  const std::string full = std::string(kTcTableId) + "/" + name;
  const CodecTable* const table = tables.Find(full);
  if (table == nullptr)
    return "the calibration has no '" + full + "': it was made without tc (calibrate --kv tc)";
  if (static_cast<int64_t>(table->values.size()) != count) {
    return "'" + full + "' has " + std::to_string(table->values.size()) + " numbers, not the " +
           std::to_string(count) + " of this model";
  }
  for (const float x : table->values) {
    if (!std::isfinite(x) || (positive && x <= 0.0f)) {
      return "'" + full + "' holds " + std::to_string(x) +
             (positive ? ", which is not positive" : "");
    }
  }
  return "";
}

std::string CheckSide(const CodecTables& tables, const std::string& side, int64_t sides, int dim) {
  std::string wrong = CheckTensor(tables, side + "_mean", sides * dim, false);
  if (wrong.empty()) wrong = CheckTensor(tables, side + "_basis", sides * dim * dim, false);
  if (wrong.empty()) wrong = CheckTensor(tables, side + "_inverse", sides * dim * dim, false);
  if (wrong.empty()) wrong = CheckTensor(tables, side + "_lambda", sides * dim, true);
  if (wrong.empty()) wrong = CheckTensor(tables, side + "_weight", sides, false);
  if (wrong.empty()) wrong = CheckTensor(tables, side + "_rot", sides, false);
  return wrong;
}

std::vector<TcSide> SidesOf(const CodecTables& tables, const std::string& side, int64_t sides,
                            int64_t dim) {
  std::vector<TcSide> all(sides);
  for (int64_t i = 0; i < sides; ++i) {
    all[i].dim = static_cast<int>(dim);
    all[i].mean = Values(tables, side + "_mean").data() + i * dim;
    all[i].basis = Values(tables, side + "_basis").data() + i * dim * dim;
    all[i].inverse = Values(tables, side + "_inverse").data() + i * dim * dim;
    all[i].lambda = Values(tables, side + "_lambda").data() + i * dim;
    all[i].weight = Values(tables, side + "_weight")[i];
    all[i].rotated = Values(tables, side + "_rot")[i] != 0.0f;
  }
  return all;
}

// What the squared error of each class weighs at distortion 1.
void AppendEnergies(const TcSide& side, std::vector<double>* energy) {
  for (int c = 0; c < TcClasses(side.dim); ++c) {
    double sum = 0.0;
    for (int i = c * kTcClass; i < std::min(side.dim, (c + 1) * kTcClass); ++i)
      sum += side.lambda[i];
    energy->push_back(sum * side.weight);
  }
}

}  // namespace

std::string TcModel::Check(const CodecTables& tables, const KvShape& shape) {
  const int64_t sides = int64_t{shape.layers} * shape.kv_heads;
  std::string wrong = CheckSide(tables, "k", sides, shape.dk);
  if (wrong.empty()) wrong = CheckSide(tables, "v", sides, shape.dv);
  if (wrong.empty()) wrong = CheckTensor(tables, "served_context", 1, true);
  return wrong;
}

TcModel::TcModel(std::shared_ptr<const CodecTables> tables, const KvShape& shape)
    : tables_(std::move(tables)), heads_(shape.kv_heads) {
  const int64_t sides = int64_t{shape.layers} * shape.kv_heads;
  keys_ = SidesOf(*tables_, "k", sides, shape.dk);
  values_ = SidesOf(*tables_, "v", sides, shape.dv);
  served_context_ = static_cast<int64_t>(Values(*tables_, "served_context")[0]);
}

TcModel::Bits TcModel::Allocate(int rate_hundredths) const {
  std::vector<double> energy;
  int64_t coefficients = 0;
  for (size_t i = 0; i < keys_.size(); ++i) {
    AppendEnergies(keys_[i], &energy);
    AppendEnergies(values_[i], &energy);
    coefficients += keys_[i].dim + values_[i].dim;
  }
  const std::vector<uint8_t> all = WaterFill(energy, TcBudget(rate_hundredths, coefficients));
  Bits bits;
  auto at = all.begin();
  for (size_t i = 0; i < keys_.size(); ++i) {
    const auto middle = at + TcClasses(keys_[i].dim), end = middle + TcClasses(values_[i].dim);
    bits.keys.emplace_back(at, middle);
    bits.values.emplace_back(middle, end);
    at = end;
  }
  return bits;
}

}  // namespace kvring
