// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: parsed, shaped, its vocabulary read, every tensor's first row dequantized. Whatever the
// reader accepts must hold what it promises; the sanitizers watch.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"
#include "runtime/model/vocab_reader.h"

namespace {

void CheckTensor(const kvring::GgufFile& file, const kvring::GgufTensor& tensor) {
  const int64_t size = tensor.row_bytes() * tensor.rows();
  if (tensor.offset % file.alignment() != 0 || size <= 0) std::abort();
  if (static_cast<uint64_t>(size) != tensor.data.size()) std::abort();
  if (tensor.offset + tensor.data.size() > static_cast<uint64_t>(file.file_bytes())) std::abort();
  std::vector<float> row(tensor.row());
  tensor.format->dequantize(tensor.data.data(), tensor.row() / tensor.format->block_elements,
                            row.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = kvring::GgufFile::FromMemory(std::span(data, size), "fuzz.gguf");
  if (!file.ok()) {
    if (file.status().message().empty()) std::abort();
    return 0;
  }
  for (const kvring::GgufTensor& tensor : (*file)->tensors()) CheckTensor(**file, tensor);
  (void)kvring::DeriveModelConfig(**file);
  (void)kvring::ReadVocab(**file);
  return 0;
}
