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
  return absl::DataLossError(absl::StrCat(file.path(), ": tensor '", tensor.name,
                                          "' holds a number that is not finite (row ",
                                          first + (bad - out) / tensor.row(), ")"));
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

absl::Status CheckFloats(const GgufFile& file, const std::string& name) {
  KVRING_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(file, name));
  return ReadPieces(file, *tensor, nullptr);
}

}  // namespace kvring
