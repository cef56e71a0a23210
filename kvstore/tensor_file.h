// SPDX-License-Identifier: Apache-2.0
// Named fp32 tensors and text metadata in one file, in the safetensors format: 8 bytes of header length, a JSON header with
// dtype, shape and data_offsets of each tensor and "__metadata__", then the data. No number of the header is trusted (F11).
#pragma once

#include <map>
#include <string>

#include "kernels/codec_tables.h"
#include "runtime/base/status.h"

namespace kvring {

struct TensorFile {
  std::map<std::string, CodecTable> tensors;
  std::map<std::string, std::string> metadata;
};

// Same content, same bytes: tensors and keys in order of their names, data packed without holes.
// shape and values of every tensor agree, and none is named "__metadata__".
std::string SerializeTensorFile(const TensorFile& file);
// name stands for the path in messages. DATA_LOSS or INVALID_ARGUMENT names file and field.
absl::StatusOr<TensorFile> ParseTensorFile(const std::string& bytes, const std::string& name);

// Written beside the target first and then renamed, so that a reader never sees half a file.
// Errors: INVALID_ARGUMENT, the path cannot be written; RESOURCE_EXHAUSTED, the disk is full. NOT_FOUND: no file to read.
absl::Status WriteTensorFile(const TensorFile& file, const std::string& path);
absl::StatusOr<TensorFile> ReadTensorFile(const std::string& path);

}  // namespace kvring
