// SPDX-License-Identifier: Apache-2.0
// Which calibration artifact a command uses: those named by --calibration, else the user's own for this model, else one
// that comes with the program.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/codec_tables.h"
#include "kvstore/calibration_file.h"
#include "launch/model_options.h"

namespace kvring {

struct UsedCalibration {
  std::string file;
  CalibrationInfo info;
  std::vector<std::string> codecs;  // table ids that were taken from it
};

struct CalibrationChoice {
  std::shared_ptr<const CodecTables> tables;  // null when no codec of the command needs any
  std::vector<UsedCalibration> used;
  uint64_t hash() const { return tables ? tables->hash : 0; }
};

// codecs: specs as typed; only those that need tables count. With `files` nothing else is looked at, each must fit the model,
// and of tables that several hold the first file's are used. Without, in this order: ${XDG_CACHE_HOME:-~/.cache}/kvring/
// calibration/<model fingerprint>.safetensors, then share/kvring/calibration/*.safetensors beside the program's folder.
// FAILED_PRECONDITION: a named file is for another model (both sides named), or no file has the tables of a codec (the
// message is a command that makes them). Reads only; every rank calls it for itself.
absl::StatusOr<CalibrationChoice> FindCalibration(const std::vector<std::string>& files,
                                                  const std::vector<std::string>& codecs,
                                                  const std::string& model_path,
                                                  const OpenModel& model, int block_tokens);

// "nuq3-1%, nuq4 of models/a.safetensors (wiki.valid.raw, 16 windows of 2,048 tokens)"
std::string DescribeCalibration(const UsedCalibration& used);

// Of the artifact among `used` that the tables of tc are from; null when none are.
const CalibrationInfo* TcInfo(const std::vector<UsedCalibration>& used);

// Where `calibrate` puts an artifact that later commands find by themselves.
absl::StatusOr<std::string> CachedCalibrationPath(const OpenModel& model);

}  // namespace kvring
