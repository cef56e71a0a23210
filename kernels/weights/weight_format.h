// SPDX-License-Identifier: Apache-2.0
// Weight formats of model files: blocks of numbers as bytes. One row a format; readers walk the table.
#pragma once

#include <cstdint>
#include <span>

namespace kvring {

// A block's numbers as integers: value = scale * (code - zero) + offset, up to the rounding of that in fp32.
struct CodeForm {
  int bits = 0;   // 4: codes 0 to 15; 8: int8; 0: the format has no codes
  int zero = 0;   // code of 0, at 4 bits only
  int group = 0;  // consecutive numbers under one scale: 16 or 32, of which a block is a multiple
  bool offset = false;
};

struct WeightFormat {
  const char* name;    // "Q4_1"
  uint32_t ggml_type;  // id in a GGUF tensor record
  int block_elements;  // numbers a block
  int block_bytes;
  // blocks consecutive blocks at `bytes` (no alignment needed) to blocks * block_elements floats.
  void (*dequantize)(const uint8_t* bytes, int64_t blocks, float* out);
  CodeForm form;
  // The same blocks taken apart: codes [numbers], scales and (where the form has them) offsets [numbers / group]. Null when
  // form.bits is 0.
  void (*split)(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets);
};

std::span<const WeightFormat> AllWeightFormats();
const WeightFormat* FindWeightFormat(uint32_t ggml_type);  // null when unknown

}  // namespace kvring
