// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/fingerprint.h"

#include <algorithm>
#include <vector>

namespace kvring {
namespace {

constexpr int64_t kSampleBytes = 64 * 1024;

template <typename T>
void AddNumber(std::vector<uint8_t>& out, T value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

// What a tensor is, and the hash of its sampled bytes: a fixed amount, however large the tensor.
absl::Status AddTensor(const GgufFile& file, const GgufTensor& tensor, std::vector<uint8_t>& out) {
  out.insert(out.end(), tensor.name.begin(), tensor.name.end());
  out.push_back(0);
  AddNumber<uint32_t>(out, tensor.format->ggml_type);
  for (const int64_t dim : tensor.dims) AddNumber<int64_t>(out, dim);
  const int64_t size = static_cast<int64_t>(tensor.data.size());
  const int64_t sample = std::min(size, kSampleBytes);
  std::vector<uint8_t> bytes(2 * sample);
  KVRING_RETURN_IF_ERROR(file.ReadTensor(tensor, 0, {bytes.data(), static_cast<size_t>(sample)}));
  KVRING_RETURN_IF_ERROR(
      file.ReadTensor(tensor, size - sample, {bytes.data() + sample, static_cast<size_t>(sample)}));
  AddNumber<uint64_t>(out, Hash64(bytes.data(), 2 * sample));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Hash128Value> ModelFingerprint(const GgufFile& file) {
  std::vector<uint8_t> summary;
  for (const GgufTensor& tensor : file.tensors()) {
    KVRING_RETURN_IF_ERROR(AddTensor(file, tensor, summary));
  }
  return Hash128(summary.data(), static_cast<int64_t>(summary.size()));
}

}  // namespace kvring
