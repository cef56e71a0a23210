// SPDX-License-Identifier: Apache-2.0
// Weight formats of model files: blocks of numbers as bytes. One row a format; readers walk the table.
#pragma once

#include <cstdint>
#include <span>

namespace kvring {

struct WeightFormat {
  const char* name;    // "Q4_1"
  uint32_t ggml_type;  // id in a GGUF tensor record
  int block_elements;  // numbers a block
  int block_bytes;
  // blocks consecutive blocks at `bytes` (no alignment needed) to blocks * block_elements floats.
  void (*dequantize)(const uint8_t* bytes, int64_t blocks, float* out);
};

std::span<const WeightFormat> AllWeightFormats();
const WeightFormat* FindWeightFormat(uint32_t ggml_type);  // null when unknown

}  // namespace kvring
