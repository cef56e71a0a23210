// SPDX-License-Identifier: Apache-2.0
// What kernels/cpu/attend_packed.h computes, in plain loops: integers exactly, floats in the order that the fast form keeps on
// instruction sets with fused multiply-add. Every page of `args` is read packed; sinks as exact rows by the same tile code.
// args.form says which roundings take place.
#pragma once

#include "kernels/attention.h"
#include "kernels/codec/page_turns.h"
#include "kernels/ref/codec_ref.h"
#include "kernels/ref/tc_ref.h"

namespace kvring {

void AttendPackedRef(const RotPageRef& form, const PageTurns& turns, const AttendArgs& args,
                     const SoftmaxPartial& partial);

// tc, blocks of 64. With a state of the sequence the sums of values lie in its basis: they go to `o` [rows][dv], relative to
// the logits o_m [rows] (-infinity: none yet), and FinishTcPackedRef adds them to `partial` once, after the last page.
void AttendPackedRef(const TcPageRef& form, const PageTurns& turns, const AttendArgs& args,
                     const SoftmaxPartial& partial, float* o, float* o_m);
void FinishTcPackedRef(const TcPageRef& form, const float* o, const float* o_m,
                       const SoftmaxPartial& partial);

}  // namespace kvring
