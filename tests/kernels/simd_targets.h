// SPDX-License-Identifier: Apache-2.0
// Runs a test body once on every instruction set that this CPU and this build have.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "hwy/targets.h"

namespace kvring {

template <class Body>
void ForEachSimdTarget(const Body& body) {
  std::vector<int64_t> targets;
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1)
    targets.push_back(rest & -rest);
  ASSERT_FALSE(targets.empty());
  for (int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    // Code that was not built for the newest x86 target runs as it does beside it, on AVX3.
    hwy::SetSupportedTargetsForTest(target == HWY_AVX3_DL ? target | HWY_AVX3 : target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace kvring
