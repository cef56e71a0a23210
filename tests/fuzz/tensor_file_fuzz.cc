// SPDX-License-Identifier: Apache-2.0
// Any bytes as a tensor file: whatever the reader accepts holds what its shapes promise, and writes back to a file that reads
// the same.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kvstore/tensor_file.h"

namespace {

void CheckTensor(const kvring::CodecTable& tensor) {
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= size;
  if (elements < 0 || static_cast<uint64_t>(elements) != tensor.values.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto file = kvring::ParseTensorFile(bytes, "fuzz.safetensors");
  if (!file.ok()) {
    if (file.status().message().find("fuzz.safetensors: ") != 0) std::abort();
    return 0;
  }
  for (const auto& [name, tensor] : file->tensors) CheckTensor(tensor);
  const std::string written = kvring::SerializeTensorFile(*file);
  const auto again = kvring::ParseTensorFile(written, "again");
  if (!again.ok() || kvring::SerializeTensorFile(*again) != written) std::abort();
  return 0;
}
