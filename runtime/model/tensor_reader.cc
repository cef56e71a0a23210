// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/tensor_reader.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "kernels/parallel.h"

namespace kvring {
namespace {

// Numbers a task reads: about the size of a second-level cache, so that the check runs on warm data.
constexpr int64_t kPieceElements = 64 * 1024;

// Keeps the failure of the earliest piece, so that the message does not depend on threads.
class FirstFailure {
 public:
  void Note(int64_t piece, absl::Status status) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (!status_.ok() && piece >= piece_) return;
    piece_ = piece;
    status_ = std::move(status);
  }
  const absl::Status& status() const { return status_; }

 private:
  std::mutex mutex_;
  int64_t piece_ = 0;
  absl::Status status_;
};

absl::Status NotFinite(const GgufFile& file, const GgufTensor& tensor, int64_t row) {
  return absl::DataLossError(absl::StrCat(file.path(), ": tensor '", tensor.name,
                                          "' holds a number that is not finite (row ", row, ")"));
}

// Rows [first, first + count) of a tensor into out.
absl::Status ReadRows(const GgufFile& file, const GgufTensor& tensor, int64_t first, int64_t count,
                      float* out) {
  const int64_t blocks_a_row = tensor.row() / tensor.format->block_elements;
  std::vector<uint8_t> bytes(count * tensor.row_bytes());
  KVRING_RETURN_IF_ERROR(file.ReadTensor(tensor, first * tensor.row_bytes(), bytes));
  tensor.format->dequantize(bytes.data(), count * blocks_a_row, out);
  const float* bad =
      std::find_if_not(out, out + count * tensor.row(), [](float x) { return std::isfinite(x); });
  if (bad == out + count * tensor.row()) return absl::OkStatus();
  return NotFinite(file, tensor, first + (bad - out) / tensor.row());
}

// out is null for a check alone.
absl::Status ReadPieces(const GgufFile& file, const GgufTensor& tensor, float* out) {
  const int64_t rows_a_piece = std::max<int64_t>(1, kPieceElements / tensor.row());
  const int64_t pieces = (tensor.rows() + rows_a_piece - 1) / rows_a_piece;
  FirstFailure failure;
  ParallelFor(pieces, [&](int64_t piece) {
    const int64_t first = piece * rows_a_piece;
    const int64_t count = std::min(rows_a_piece, tensor.rows() - first);
    std::vector<float> scratch(out == nullptr ? count * tensor.row() : 0);
    float* to = out == nullptr ? scratch.data() : out + first * tensor.row();
    failure.Note(piece, ReadRows(file, tensor, first, count, to));
  });
  return failure.status();
}

// Rows [first, first + count) of a tensor into their place. Codes are finite; so is every number when scale and offset are,
// up to overflow of their product in fp32, which no file of trained weights comes near.
absl::Status SplitRows(const GgufFile& file, const GgufTensor& tensor, int64_t first, int64_t count,
                       BlockWeights& to) {
  std::vector<uint8_t> bytes(count * tensor.row_bytes());
  KVRING_RETURN_IF_ERROR(file.ReadTensor(tensor, first * tensor.row_bytes(), bytes));
  const int64_t groups = tensor.row() / to.group;
  float* scales = to.scales.data() + first * groups;
  float* offsets = to.offsets.empty() ? nullptr : to.offsets.data() + first * groups;
  tensor.format->split(bytes.data(), count * (tensor.row() / tensor.format->block_elements),
                       to.codes.data() + first * tensor.row(), scales, offsets);
  for (int64_t i = 0; i < count * groups; ++i) {
    if (!std::isfinite(scales[i]) || (offsets != nullptr && !std::isfinite(offsets[i])))
      return NotFinite(file, tensor, first + i / groups);
  }
  return absl::OkStatus();
}

absl::Status SplitPieces(const GgufFile& file, const GgufTensor& tensor, BlockWeights& to) {
  const int64_t rows_a_piece = std::max<int64_t>(1, kPieceElements / tensor.row());
  FirstFailure failure;
  ParallelFor((tensor.rows() + rows_a_piece - 1) / rows_a_piece, [&](int64_t piece) {
    const int64_t first = piece * rows_a_piece;
    failure.Note(piece,
                 SplitRows(file, tensor, first, std::min(rows_a_piece, tensor.rows() - first), to));
  });
  return failure.status();
}

absl::StatusOr<const GgufTensor*> Find(const GgufFile& file, const std::string& name) {
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor != nullptr) return tensor;
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor '", name, "' is missing"));
}

}  // namespace

absl::StatusOr<std::vector<float>> ReadFloats(const GgufFile& file,
                                              const std::vector<std::string>& names) {
  int64_t elements = 0;
  for (const std::string& name : names) {
    KVRING_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(file, name));
    elements += tensor->elements();
  }
  std::vector<float> floats(elements);
  float* out = floats.data();
  for (const std::string& name : names) {
    const GgufTensor& tensor = *file.FindTensor(name);
    KVRING_RETURN_IF_ERROR(ReadPieces(file, tensor, out));
    out += tensor.elements();
  }
  return floats;
}

absl::StatusOr<BlockWeights> ReadBlocks(const GgufFile& file, const std::string& name) {
  KVRING_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(file, name));
  if (tensor->format->split == nullptr) {
    KVRING_ASSIGN_OR_RETURN(const std::vector<float> floats, ReadFloats(file, {name}));
    return RoundToBlocks(floats.data(), tensor->rows(), tensor->row());
  }
  const CodeForm& form = tensor->format->form;
  BlockWeights weights;
  weights.rows = tensor->rows();
  weights.bits = form.bits;
  weights.group = form.group;
  weights.zero = form.zero;
  weights.codes.resize(tensor->elements());
  weights.scales.resize(tensor->elements() / form.group);
  weights.offsets.resize(form.offset ? weights.scales.size() : 0);
  KVRING_RETURN_IF_ERROR(SplitPieces(file, *tensor, weights));
  return weights;
}

absl::Status CheckFloats(const GgufFile& file, const std::string& name) {
  KVRING_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(file, name));
  return ReadPieces(file, *tensor, nullptr);
}

}  // namespace kvring
