// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/tc_reader.h"

#include <cmath>

#include "kernels/codec/small_matrix.h"
#include "kernels/codec/tc_levels.h"
#include "kernels/cpu/exp2.h"
#include "kernels/ref/packed_attention.h"

namespace kvring {
namespace {

static_assert(kPackedClass == kTcClass && kPackedGainRows == kTcGroup);

ClassLevels MakeClassLevels() {
  ClassLevels all{};
  for (int bits = 1; bits <= kTcMaxBits; ++bits) {
    const TcLevels& levels = TcLevelsOf(bits);
    all.unit[bits] = levels.unit;
    for (int i = 0; i < 64; ++i) all.level[bits][i] = levels.level[i & ((1 << bits) - 1)];
  }
  return all;
}

const ClassLevels& AllClassLevels() {
  static const ClassLevels levels = MakeClassLevels();
  return levels;
}

int64_t BytesOf(const std::vector<uint8_t>& bits) {
  int64_t bytes = 0;
  for (const uint8_t b : bits) bytes += int64_t{b} * kPackedBlock;
  return bytes;
}

// What a level of each coefficient stands for in the values' basis.
void FillValueSteps(const TcSide& side, const std::vector<uint8_t>& bits, const TcTurn& turn,
                    std::vector<float>& steps) {
  steps.resize(side.dim);
  for (int i = 0; i < side.dim; ++i) {
    const float scale = turn.basis == nullptr ? std::sqrt(side.lambda[i]) : turn.deviation[i];
    steps[i] = AllClassLevels().unit[bits[i / kTcClass]] * scale;
  }
}

void FillValueBasis(const TcTurn& turn, int dim, std::vector<float>& basis) {
  basis.resize(turn.basis == nullptr ? 0 : static_cast<size_t>(dim) * dim);
  if (turn.basis == nullptr) return;
  for (int i = 0; i < dim; ++i)
    for (int j = 0; j < dim; ++j) basis[j * dim + i] = turn.basis[i * dim + j];
}

}  // namespace

TcReader::TcReader(std::shared_ptr<const TcModel> model, const TcModel::Bits& bits,
                   const KvShape& shape, const std::vector<const RopeTable*>& rope)
    : model_(std::move(model)), shape_(shape), rope_(rope), bits_(bits) {
  fits_ = shape.block_tokens == kPackedBlock && PackedFormFits(FormOf(0));
  if (!fits_) return;
  turns_ = MakePageTurns(rope_, shape.block_tokens);
  for (const std::vector<uint8_t>& side : bits_.keys) {
    const int64_t k_words = int64_t{TcGroups(shape.dk)} * kPackedBlock;
    const int64_t k_bytes = k_words + BytesOf(side);
    places_.push_back({k_words, 0, k_bytes + int64_t{TcGroups(shape.dv)} * kPackedBlock, k_bytes});
  }
}

PackedForm TcReader::FormOf(int side) const {
  PackedForm form;
  form.dk = shape_.dk, form.dv = shape_.dv;
  form.k_bits = bits_.keys[side].data(), form.v_bits = bits_.values[side].data();
  form.levels = &AllClassLevels();
  return form;
}

bool TcReader::Prepare(const AttendArgs& args, const TcTurn& value, PackedQueries& queries) const {
  if (!fits_ || args.packed_q == nullptr) return false;
  const int64_t rows = static_cast<int64_t>(args.positions.size());
  QuantizeQueries(FormOf(At(args)), args.packed_q, rows, queries);
  TurnQueries(*rope_[args.layer], model_->Key(args.layer, args.head).mean, args.raw_q, rows,
              queries);
  const TcSide& side = model_->Value(args.layer, args.head);
  FillValueSteps(side, bits_.values[At(args)], value, queries.value_step);
  FillValueBasis(value, side.dim, queries.value_basis);
  return true;
}

int64_t TcReader::Attend(const AttendArgs& args, std::span<const PageView> pages, int64_t first,
                         int64_t last, AttendScratch& scratch,
                         const SoftmaxPartial& partial) const {
  if (args.prepared == nullptr) return 0;
  const PageTurns& turns = *turns_[args.layer];
  if (args.form.math == AttentionMath::kPlainInt8) {
    if (!turns.Covers(pages.front().begin)) return 0;
    AttendPlain(args, pages.front(), first, last, scratch, partial);
    return 1;
  }
  const PackedReading reading{FormOf(At(args)), places_[At(args)], &turns};
  return AttendPackedViews(reading, args, pages, first, last, scratch, partial);
}

void TcReader::AttendPlain(const AttendArgs& args, const PageView& view, int64_t first,
                           int64_t last, AttendScratch& scratch,
                           const SoftmaxPartial& partial) const {
  TcPageRef form;
  form.rope = rope_[args.layer];
  form.key = model_->Key(args.layer, args.head), form.value = model_->Value(args.layer, args.head);
  form.key_bits = bits_.keys[At(args)], form.value_bits = bits_.values[At(args)];
  AttendArgs rows = args;
  rows.pages = {&view, 1};
  rows.positions = args.positions.subspan(first, last - first);
  rows.raw_q += first * args.dk;
  rows.packed_q += first * args.dk;
  float *o = nullptr, *o_m = nullptr;
  if (!args.prepared->value_basis.empty()) {
    form.state = args.state;
    GiveTurned(args, first, scratch.packed, &o, &o_m);
  }
  AttendPackedRef(form, *turns_[args.layer], rows, partial.Slice(first, last - first), o, o_m);
}

void TcReader::Finish(const AttendArgs& args, AttendScratch& scratch,
                      const SoftmaxPartial& partial) const {
  const PackedScratch& packed = scratch.packed;
  const int dv = shape_.dv;
  scratch.rows.resize(static_cast<size_t>(dv));
  float* const y = scratch.rows.data();
  for (int64_t r = 0; r < partial.rows; ++r) {
    if (packed.turned_m[r] == kNoLogit) continue;
    RowsTimesMatrix(packed.turned_o.data() + r * dv, 1, args.prepared->value_basis.data(), dv, dv,
                    y);
    const float factor = Exp2(packed.turned_m[r] - partial.m[r]);
    float* const o = partial.o + r * dv;
    for (int i = 0; i < dv; ++i) o[i] += factor * y[i];
  }
}

}  // namespace kvring
