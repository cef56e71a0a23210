// SPDX-License-Identifier: Apache-2.0
// A calibration artifact: the tables of one or many codecs for one model, self-describing (kvquant spec 2).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec_tables.h"
#include "runtime/base/status.h"

namespace kvring {

inline constexpr int kCalibrationVersion = 1;

// tc's covariance, mean and basis redone from other texts after the calibration (`calibrate --update-covariance`); its metric
// and the tables of other codecs are those of the calibration itself.
struct CalibrationUpdate {
  std::vector<std::string> texts;
  std::string text_hash;  // as CalibrationInfo's, of the update's windows
  std::string from;       // tables.hash of the artifact that was updated, hex
  int64_t windows = 0, window = 0, seed = 0;
};

// What `tc` costs at some rates on windows that no table was made from, everything read packed, without :adapt.
struct HeldOutPoint {
  double rate = 0.0;  // bits a coefficient, as in tc@RATE; ascending in a list
  double bits = 0.0;  // allocated, per element
  double nats = 0.0;  // mean loss over an f16 cache's
  double kl = 0.0;    // mean KL(f16 || tc)
};
struct HeldOut {
  int64_t windows = 0, window = 0;
  std::vector<HeldOutPoint> points;
};

struct CalibrationInfo {
  int version = kCalibrationVersion;
  std::string model_name;
  std::string model_hash;           // ModelFingerprint of the model's file, hex
  std::vector<std::string> codecs;  // table ids
  std::vector<std::string> texts;   // names of the calibration texts
  std::string text_hash;  // XXH3-128 of the token ids of all windows, little-endian int32, hex
  int64_t windows = 0, window = 0, seed = 0, sinks = 0, served_context = 0;
  KvShape shape;
  std::string
      rope;  // of layer 0: "interleaved, 32 planes, base ..", with a hash of all frequencies
  double loss = 0.0;  // mean nats of the windows
  std::optional<CalibrationUpdate> update;
  std::optional<HeldOut> held_out;  // at least one point
};

// The cost at any rate: log KL is linear in the rate between points, nats keep their ratio to it. Beyond the points, those at
// the end count. `held_out` has at least one point.
HeldOutPoint HeldOutAt(const HeldOut& held_out, double rate);

struct Calibration {
  CalibrationInfo info;
  std::shared_ptr<const CodecTables> tables;
};

// XXH3-64 of names, shapes and values of all tensors, in order of their names: what CodecTables::hash is.
uint64_t HashTables(const CodecTables& tables);

// Hashes are computed here, whatever calibration.tables->hash says. INVALID_ARGUMENT: the path cannot be written;
// RESOURCE_EXHAUSTED: the disk is full; DATA_LOSS: a table is not finite.
absl::Status WriteCalibration(const Calibration& calibration, const std::string& path);

// DATA_LOSS, INVALID_ARGUMENT: the file is damaged or of another kind or version.
absl::StatusOr<Calibration> ReadCalibration(const std::string& path);

// FAILED_PRECONDITION, naming both sides, when the artifact was made for another model, shape or frequencies.
absl::Status CheckCalibration(const Calibration& calibration, const std::string& path,
                              const std::string& model_hash, const KvShape& shape,
                              const std::vector<const RopeTable*>& rope);

// "interleaved, 32 planes, frequencies 1 .. 1.4e-05, hash .." of all layers.
std::string DescribeRope(const std::vector<const RopeTable*>& rope);

}  // namespace kvring
