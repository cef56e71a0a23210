// SPDX-License-Identifier: Apache-2.0
// Packed attention of tc (rotated-and-transform 3, 4): what kernels/cpu/attend_packed.h needs, taken from a page, the tables
// and the sequence's state. The rotated mean is a bias by position; units of the levels are part of the query.
//
// With `adapt` values lie in the basis of the sequence, y U, and exact rows in y: their sums are kept apart, each relative to
// the largest logit that it has met, and come together once a call, o += 2^(m_o - m) (sum U^t). What a row adds to its own sum
// are its own pages in order, so no company of other rows changes a bit.
#pragma once

#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/codec/packed_reader.h"
#include "kernels/codec/tc_adapt.h"
#include "kernels/codec/tc_model.h"

namespace kvring {

class TcReader {
 public:
  // bits: of every (layer, head), as TcModel::Allocate gives them.
  TcReader(std::shared_ptr<const TcModel> model, const TcModel::Bits& bits, const KvShape& shape,
           const std::vector<const RopeTable*>& rope);

  // value: of args.state. False when this shape is read as tiles (blocks other than 64 tokens, head sizes that are no multiple
  // of 16).
  bool Prepare(const AttendArgs& args, const TcTurn& value, PackedQueries& queries) const;
  int64_t Attend(const AttendArgs& args, std::span<const PageView> pages, int64_t first,
                 int64_t last, AttendScratch& scratch, const SoftmaxPartial& partial) const;
  void Finish(const AttendArgs& args, AttendScratch& scratch, const SoftmaxPartial& partial) const;

 private:
  int At(const AttendArgs& args) const { return args.layer * shape_.kv_heads + args.head; }
  PackedForm FormOf(int side) const;
  void AttendPlain(const AttendArgs& args, const PageView& page, int64_t first, int64_t last,
                   AttendScratch& scratch, const SoftmaxPartial& partial) const;

  std::shared_ptr<const TcModel> model_;
  KvShape shape_;
  std::vector<const RopeTable*> rope_;  // [layers]
  TcModel::Bits bits_;
  std::vector<PackedPlaces> places_;  // [layers * kv_heads]
  bool fits_;
  std::vector<std::shared_ptr<const PageTurns>> turns_;  // [layers], empty when it does not fit
};

}  // namespace kvring
