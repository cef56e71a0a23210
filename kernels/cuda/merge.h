// SPDX-License-Identifier: Apache-2.0
// Merge of softmax partials on a GPU: the law of kernels/softmax_partial.h. No CUDA header is needed to include this.
// Errors carry CUDA's own text; without a driver or a device they say so, nothing crashes. Thread-safe.
#pragma once

#include "kernels/error.h"
#include "kernels/softmax_partial.h"

namespace kvring::cuda {

// Devices that this process can use; 0 without a driver.
int DeviceCount();

// into (+)= from, row by row; both lie in memory of the current device, shapes are equal, they do not overlap. Queued on
// `stream` (a cudaStream_t; null is the default stream); errors of the run itself show at the stream's next wait.
Error MergeAsync(const SoftmaxPartial& into, const SoftmaxPartial& from, void* stream);

// The same for partials in host memory: copied to the current device, merged, copied back. Waits.
Error MergeOnDevice(const SoftmaxPartial& into, const SoftmaxPartial& from);

}  // namespace kvring::cuda
