// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/aligned_bytes.h"
#include "kernels/cpu/block_product.h"
#include "kernels/half.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

// Activations of a task stay in half a second-level cache while panels go by. A task has a multiple of so many rows.
constexpr int64_t kTileBytes = 512 * 1024;
constexpr int64_t kTileRows = 6;
// Rows quantized together, which bounds the buffer.
constexpr int64_t kMostRows = 1024;
// Weights of a task with few rows: its panels cost more than claiming it.
constexpr int64_t kTaskWeights = 48 * 1024;
// Rows that the calling thread quantizes alone: waking another costs as much.
constexpr int64_t kSerialRows = 8;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool FitHalf(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](float x) { return HalfToFloat(FloatToHalf(x)) == x; });
}

// One part: its panels one after the other.
struct PackedPart {
  PanelForm form;
  int64_t first = 0, rows = 0;  // of the outputs
  int64_t panels = 0;
  int64_t first_task = 0, panels_a_task = 1;
  AlignedBytes bytes;
};

// Block b of column c (row `r` of the weights) into its place in a panel of zeros.
void PackCodes(const BlockWeights& w, int64_t in, int64_t r, int64_t b, int64_t c, uint8_t* block) {
  const int64_t first = b * kBlockNumbers, n = std::min(kBlockNumbers, in - first);
  const int8_t* codes = w.codes.data() + r * in + first;
  for (int64_t i = 0; i < n; ++i) {
    const auto code = static_cast<uint8_t>(codes[i]);
    if (w.bits == 8) {
      block[(i / 4 * kPanelColumns + c) * 4 + i % 4] = code;
    } else {
      uint8_t& pair = block[(i / 8 * kPanelColumns + c) * 4 + i % 4];
      pair = static_cast<uint8_t>(pair | code << (i % 8 < 4 ? 0 : 4));
    }
  }
}

void PackScales(const float* values, int64_t n, int64_t c, bool half, uint8_t* to) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = i * kPanelColumns + c;
    if (half) {
      const Half value = FloatToHalf(values[i]);
      std::memcpy(to + at * 2, &value, sizeof(value));
    } else {
      std::memcpy(to + at * 4, &values[i], sizeof(float));
    }
  }
}

// Column c of a panel.
void PackColumn(const BlockWeights& w, const PanelForm& form, int64_t in, int64_t r, int64_t c,
                uint8_t* panel) {
  const int64_t groups = CeilDiv(in, w.group);
  for (int64_t b = 0; b < form.blocks; ++b) {
    uint8_t* const block = panel + b * form.block_bytes();
    PackCodes(w, in, r, b, c, block);
    const int64_t first = b * form.groups(), n = std::min(form.groups(), groups - first);
    uint8_t* const scales = block + form.code_bytes();
    PackScales(w.scales.data() + r * groups + first, n, c, form.half, scales);
    if (form.offset) {
      PackScales(w.offsets.data() + r * groups + first, n, c, form.half,
                 scales + form.scale_bytes());
    }
  }
}

PackedPart PackPart(const BlockWeights& w, int64_t in) {
  PackedPart part;
  part.rows = w.rows;
  part.panels = CeilDiv(w.rows, kPanelColumns);
  part.form = {
      CeilDiv(in, kBlockNumbers), w.bits, w.group, w.zero, FitHalf(w.scales) && FitHalf(w.offsets),
      !w.offsets.empty()};
  part.panels_a_task = std::max<int64_t>(1, kTaskWeights / (in * kPanelColumns));
  const int64_t bytes = part.form.bytes();
  part.bytes = AllocateWeights(part.panels * bytes);
  ParallelFor(part.panels, [&](int64_t p) {
    uint8_t* const panel = part.bytes.get() + p * bytes;
    std::memset(panel, 0, static_cast<size_t>(bytes));
    for (int64_t r = p * kPanelColumns; r < std::min((p + 1) * kPanelColumns, w.rows); ++r)
      PackColumn(w, part.form, in, r, r % kPanelColumns, panel);
  });
  return part;
}

class BlockLinear : public Linear {
 public:
  BlockLinear(const std::vector<BlockWeights>& weights, int64_t in)
      : in_(in), row_{CeilDiv(in, kBlockNumbers)} {
    for (const BlockWeights& w : weights) {
      PackedPart part = PackPart(w, in);
      part.first = out_;
      part.first_task = tasks_;
      out_ += w.rows;
      tasks_ += CeilDiv(part.panels, part.panels_a_task);
      parts_.push_back(std::move(part));
    }
  }

  void Forward(const float* x, float* y, int64_t rows) const override {
    for (int64_t r = 0; r < rows; r += kMostRows)
      ForwardRows(x + r * in_, y + r * out_, std::min(kMostRows, rows - r));
  }

  Error BackwardData(const float* /*dy*/, float* /*dx*/, int64_t /*rows*/) const override {
    return {"a linear layer of blocks keeps nothing for a backward pass"};
  }

  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  int64_t bytes() const override {
    int64_t sum = 0;
    for (const PackedPart& part : parts_) sum += part.panels * part.form.bytes();
    return sum;
  }

 private:
  void ForwardRows(const float* x, float* y, int64_t rows) const {
    thread_local AlignedBytes buffer;
    thread_local int64_t buffer_bytes = 0;
    if (rows * row_.bytes() > buffer_bytes) {
      buffer_bytes = rows * row_.bytes();
      buffer = AllocateAligned(buffer_bytes);
    }
    uint8_t* const quantized = buffer.get();
    ParallelFor(CeilDiv(rows, kSerialRows), [&](int64_t task) {
      const int64_t end = std::min(rows, (task + 1) * kSerialRows);
      for (int64_t r = task * kSerialRows; r < end; ++r)
        QuantizeActivations(x + r * in_, in_, quantized + r * row_.bytes());
    });
    const int64_t tiles = CeilDiv(rows * row_.bytes(), kTileBytes);
    const int64_t tile = CeilDiv(CeilDiv(rows, tiles), kTileRows) * kTileRows;
    ParallelFor(tasks_ * tiles, [&](int64_t task) {
      const int64_t first = task % tiles * tile;
      if (first >= rows) return;
      RunTask(task / tiles, quantized + first * row_.bytes(), std::min(tile, rows - first),
              y + first * out_);
    });
  }

  void RunTask(int64_t task, const uint8_t* rows_at, int64_t rows, float* y) const {
    size_t i = parts_.size() - 1;
    while (parts_[i].first_task > task) --i;
    const PackedPart& part = parts_[i];
    const int64_t begin = (task - part.first_task) * part.panels_a_task;
    const int64_t end = std::min(part.panels, begin + part.panels_a_task);
    const uint8_t* const last = part.bytes.get() + end * part.form.bytes();
    for (int64_t p = begin; p < end; ++p) {
      const int64_t column = p * kPanelColumns;
      MultiplyPanel(part.form, part.bytes.get() + p * part.form.bytes(), last, rows_at, rows,
                    y + part.first + column, out_, std::min(kPanelColumns, part.rows - column));
    }
  }

  int64_t in_, out_ = 0, tasks_ = 0;
  ActivationRow row_;
  std::vector<PackedPart> parts_;
};

}  // namespace

BlockWeights RoundToBlocks(const float* w, int64_t rows, int64_t in) {
  BlockWeights blocks;
  blocks.rows = rows;
  const int64_t groups = CeilDiv(in, kBlockNumbers);
  const ActivationRow row{groups};
  blocks.codes.resize(static_cast<size_t>(rows * in));
  blocks.scales.resize(static_cast<size_t>(rows * groups));
  std::vector<uint8_t> buffer(static_cast<size_t>(row.bytes()));
  for (int64_t r = 0; r < rows; ++r) {
    QuantizeActivations(w + r * in, in, buffer.data());
    const auto* block = reinterpret_cast<const ActivationBlock*>(buffer.data());
    for (int64_t b = 0; b < groups; ++b, ++block) {
      std::copy_n(block->q, std::min(kBlockNumbers, in - b * kBlockNumbers),
                  blocks.codes.data() + r * in + b * kBlockNumbers);
      blocks.scales[r * groups + b] = block->scale;
    }
  }
  return blocks;
}

std::unique_ptr<Linear> MakeBlockLinear(const std::vector<BlockWeights>& parts, int64_t in) {
  return std::make_unique<BlockLinear>(parts, in);
}

}  // namespace kvring
