// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/weight_format.h"

#include "kernels/weights/formats.h"

namespace kvring {
namespace {

// The ids are those of GGML.
constexpr CodeForm kNoCodes{};

constexpr WeightFormat kFormats[] = {
    {"F32", 0, 1, 4, weights::DequantizeF32, kNoCodes, nullptr},
    {"F16", 1, 1, 2, weights::DequantizeF16, kNoCodes, nullptr},
    {"Q4_0", 2, 32, 18, weights::DequantizeQ40, {4, 8, 32, false}, weights::SplitQ40},
    {"Q4_1", 3, 32, 20, weights::DequantizeQ41, {4, 0, 32, true}, weights::SplitQ41},
    {"Q5_0", 6, 32, 22, weights::DequantizeQ50, {8, 0, 32, false}, weights::SplitQ50},
    {"Q5_1", 7, 32, 24, weights::DequantizeQ51, {8, 0, 32, true}, weights::SplitQ51},
    {"Q8_0", 8, 32, 34, weights::DequantizeQ80, {8, 0, 32, false}, weights::SplitQ80},
    {"Q4_K", 12, 256, 144, weights::DequantizeQ4K, {4, 0, 32, true}, weights::SplitQ4K},
    {"Q5_K", 13, 256, 176, weights::DequantizeQ5K, {8, 0, 32, true}, weights::SplitQ5K},
    {"Q6_K", 14, 256, 210, weights::DequantizeQ6K, {8, 0, 16, false}, weights::SplitQ6K},
    {"BF16", 30, 1, 2, weights::DequantizeBf16, kNoCodes, nullptr},
};

}  // namespace

std::span<const WeightFormat> AllWeightFormats() { return kFormats; }

const WeightFormat* FindWeightFormat(uint32_t ggml_type) {
  for (const WeightFormat& format : kFormats) {
    if (format.ggml_type == ggml_type) return &format;
  }
  return nullptr;
}

}  // namespace kvring
