// SPDX-License-Identifier: Apache-2.0
// The body of Merge (softmax_partial.h), one thread. Private to kernels/.
#pragma once

#include "kernels/softmax_partial.h"

namespace kvring {

void MergeRows(const SoftmaxPartial& into, const SoftmaxPartial& from);

}  // namespace kvring
