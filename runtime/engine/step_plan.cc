// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/step_plan.h"

#include "kvring/v1/step_plan.pb.h"

namespace kvring {
namespace {

v1::SequenceOp ToProto(const SequenceOp& op) {
  v1::SequenceOp out;
  out.set_kind(static_cast<v1::SequenceOp::Kind>(static_cast<int>(op.kind) + 1));
  out.set_sequence(op.sequence);
  out.set_source(op.source);
  out.set_length(op.length);
  out.set_rho(op.rho);
  return out;
}

v1::Slice ToProto(const Slice& slice) {
  v1::Slice out;
  out.set_sequence(slice.sequence);
  out.set_begin(slice.begin);
  out.mutable_ids()->Add(slice.ids.begin(), slice.ids.end());
  out.set_scheme(slice.scheme == Scheme::kReplicated ? v1::Slice::SCHEME_REPLICATED
                                                     : v1::Slice::SCHEME_GATHER_Q);
  out.set_mean_exchange(slice.mean_exchange);
  out.set_want(static_cast<v1::Slice::Want>(slice.want));
  return out;
}

absl::StatusOr<SequenceOp> FromProto(const v1::SequenceOp& op) {
  if (op.kind() < v1::SequenceOp::KIND_CREATE || op.kind() > v1::SequenceOp::KIND_CLOSE) {
    return absl::InvalidArgumentError(absl::StrCat("step plan: unknown operation ", op.kind()));
  }
  return SequenceOp{static_cast<SequenceOp::Kind>(op.kind() - 1), op.sequence(), op.source(),
                    op.length(), op.rho()};
}

absl::StatusOr<Slice> FromProto(const v1::Slice& slice) {
  Slice out;
  out.sequence = slice.sequence();
  out.begin = slice.begin();
  out.ids.assign(slice.ids().begin(), slice.ids().end());
  if (slice.scheme() == v1::Slice::SCHEME_REPLICATED) {
    out.scheme = Scheme::kReplicated;
  } else if (slice.scheme() == v1::Slice::SCHEME_GATHER_Q) {
    out.scheme = Scheme::kGatherQ;
  } else {
    return absl::UnimplementedError(
        absl::StrCat("step plan: attention scheme ", slice.scheme(), " is not built"));
  }
  out.mean_exchange = slice.mean_exchange();
  if (slice.want() < v1::Slice::WANT_NOTHING || slice.want() > v1::Slice::WANT_ALL) {
    return absl::InvalidArgumentError(absl::StrCat("step plan: unknown want ", slice.want()));
  }
  out.want = static_cast<Want>(slice.want());
  return out;
}

}  // namespace

std::string SerializePlan(const StepPlan& plan) {
  v1::StepPlan out;
  out.set_epoch(plan.epoch);
  out.set_step(plan.step);
  out.set_numerics(plan.numerics);
  out.set_last(plan.last);
  out.set_report(plan.report);
  for (const SequenceOp& op : plan.ops) *out.add_ops() = ToProto(op);
  for (const Slice& slice : plan.slices) *out.add_slices() = ToProto(slice);
  return out.SerializeAsString();
}

absl::StatusOr<StepPlan> ParsePlan(const std::string& bytes) {
  v1::StepPlan in;
  if (!in.ParseFromString(bytes)) {
    return absl::DataLossError(
        absl::StrCat("step plan of ", bytes.size(), " bytes cannot be read"));
  }
  StepPlan plan{in.epoch(), in.step(), in.numerics(), {}, {}, in.last(), in.report()};
  for (const v1::SequenceOp& op : in.ops()) {
    KVRING_ASSIGN_OR_RETURN(SequenceOp parsed, FromProto(op));
    plan.ops.push_back(parsed);
  }
  for (const v1::Slice& slice : in.slices()) {
    KVRING_ASSIGN_OR_RETURN(Slice parsed, FromProto(slice));
    plan.slices.push_back(std::move(parsed));
  }
  return plan;
}

}  // namespace kvring
