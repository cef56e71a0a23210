// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/merge.h"

#include <cuda_runtime.h>

#include "kernels/cuda/merge_law.h"

namespace kvring::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kRowsPerBlock = 4;  // one warp a row: dv is 64 to 256, two to eight elements a lane

__global__ void MergeKernel(SoftmaxPartial into, SoftmaxPartial from) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.y;
  if (row >= into.rows) return;  // whole warps leave
  const RowMerge merge = MergeRow(into.m[row], into.l[row], from.m[row], from.l[row]);
  if (merge.keep) return;
  float* into_o = into.o + row * into.dv;
  const float* from_o = from.o + row * from.dv;
  for (int64_t i = threadIdx.x; i < into.dv; i += kWarp) {
    into_o[i] =
        merge.replace ? from_o[i] : into_o[i] * merge.into_scale + from_o[i] * merge.from_scale;
  }
  __syncwarp();  // every lane has read m and l
  if (threadIdx.x == 0) {
    into.m[row] = merge.m;
    into.l[row] = merge.l;
  }
}

Error ToError(cudaError_t code) {
  return {code == cudaSuccess ? nullptr : cudaGetErrorString(code)};
}

// Floats on the current device, freed at the end of the scope.
class DeviceFloats {
 public:
  explicit DeviceFloats(int64_t count) : bytes_(count * sizeof(float)) {}
  ~DeviceFloats() { cudaFree(data_); }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;
  cudaError_t Allocate() { return cudaMalloc(reinterpret_cast<void**>(&data_), bytes_); }
  float* data() const { return data_; }

 private:
  float* data_ = nullptr;
  size_t bytes_;
};

cudaError_t CopyPartial(const SoftmaxPartial& to, const SoftmaxPartial& from, cudaMemcpyKind kind) {
  const size_t row_bytes = from.rows * sizeof(float);
  cudaError_t code = cudaMemcpy(to.m, from.m, row_bytes, kind);
  if (code == cudaSuccess) code = cudaMemcpy(to.l, from.l, row_bytes, kind);
  if (code == cudaSuccess) code = cudaMemcpy(to.o, from.o, row_bytes * from.dv, kind);
  return code;
}

}  // namespace

int DeviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Error MergeAsync(const SoftmaxPartial& into, const SoftmaxPartial& from, void* stream) {
  if (into.rows == 0) return {};
  const int64_t blocks = (into.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  if (blocks > INT32_MAX) return {"more rows than one launch takes"};
  MergeKernel<<<static_cast<unsigned>(blocks), dim3(kWarp, kRowsPerBlock), 0,
                static_cast<cudaStream_t>(stream)>>>(into, from);
  return ToError(cudaGetLastError());
}

Error MergeOnDevice(const SoftmaxPartial& into, const SoftmaxPartial& from) {
  const int64_t floats = PartialFloats(into.rows, into.dv);
  DeviceFloats into_memory(floats), from_memory(floats);
  if (const Error error = ToError(into_memory.Allocate())) return error;
  if (const Error error = ToError(from_memory.Allocate())) return error;
  const SoftmaxPartial into_device = PartialAt(into_memory.data(), into.rows, into.dv);
  const SoftmaxPartial from_device = PartialAt(from_memory.data(), from.rows, from.dv);
  if (const Error e = ToError(CopyPartial(into_device, into, cudaMemcpyHostToDevice))) return e;
  if (const Error e = ToError(CopyPartial(from_device, from, cudaMemcpyHostToDevice))) return e;
  if (const Error error = MergeAsync(into_device, from_device, nullptr)) return error;
  return ToError(CopyPartial(into, into_device, cudaMemcpyDeviceToHost));
}

}  // namespace kvring::cuda
