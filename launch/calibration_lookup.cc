// SPDX-License-Identifier: Apache-2.0
#include "launch/calibration_lookup.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/codec/nuq_rules.h"
#include "kernels/codec/tc_bits.h"
#include "kernels/codec/tc_model.h"
#include "kvstore/codec_spec.h"
#include "launch/progress.h"
#include "runtime/base/hash.h"
#include "runtime/model/fingerprint.h"

namespace kvring {
namespace {

namespace fs = std::filesystem;

// What artifacts are compared with.
struct ModelSide {
  std::string hash;
  KvShape shape;
  std::vector<const RopeTable*> rope;
};

absl::StatusOr<ModelSide> SideOf(const OpenModel& model, int block_tokens) {
  ModelSide side;
  KVRING_ASSIGN_OR_RETURN(const Hash128Value hash, ModelFingerprint(*model.file));
  side.hash = HashHex(hash);
  side.shape = model.config.kv_shape(block_tokens);
  for (const RopeTable& table : model.config.rope) side.rope.push_back(&table);
  return side;
}

// Ids of the tables that the codecs need, each once.
std::vector<std::string> NeededTables(const std::vector<std::string>& codecs) {
  std::vector<std::string> ids;
  for (const std::string& spec : codecs) {
    if (!NeedsCalibration(spec)) continue;
    std::vector<std::string> parts = absl::StrSplit(spec, ':');
    const std::string name = parts[0];
    parts.erase(parts.begin());
    const std::string id =
        ParseTcRate(name) > 0 ? kTcTableId : NuqTableId(name, ParseNuqTableOptions(parts));
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

std::string CacheFolder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return absl::StrCat(cache, "/kvring/calibration");
  const char* const home = std::getenv("HOME");
  return home == nullptr ? "" : absl::StrCat(home, "/.cache/kvring/calibration");
}

std::vector<std::string> UsualPlaces(const std::string& model_hash) {
  std::error_code error;
  std::vector<std::string> found;
  const std::string own = absl::StrCat(CacheFolder(), "/", model_hash, ".safetensors");
  if (fs::exists(own, error)) found.push_back(own);
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path shipped = program.parent_path().parent_path() / "share/kvring/calibration";
  std::vector<std::string> files;
  for (fs::directory_iterator it(shipped, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());
  found.insert(found.end(), files.begin(), files.end());
  return found;
}

absl::StatusOr<Calibration> ReadFitting(const std::string& path, const ModelSide& side) {
  KVRING_ASSIGN_OR_RETURN(Calibration calibration, ReadCalibration(path));
  KVRING_RETURN_IF_ERROR(CheckCalibration(calibration, path, side.hash, side.shape, side.rope));
  return calibration;
}

bool Holds(const std::vector<std::string>& ids, const std::string& id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Needed tables of one file that no earlier one had: all tensors under their ids.
void Take(const std::string& path, const Calibration& from, std::vector<std::string>& missing,
          CodecTables& tables, CalibrationChoice& choice) {
  UsedCalibration used{path, from.info, {}};
  for (const std::string& id : from.info.codecs) {
    if (!Holds(missing, id)) continue;
    used.codecs.push_back(id);
    missing.erase(std::find(missing.begin(), missing.end(), id));
    const std::string prefix = id + "/";
    for (auto it = from.tables->tensors.lower_bound(prefix);
         it != from.tables->tensors.end() && it->first.starts_with(prefix); ++it) {
      tables.tensors.insert(*it);
    }
  }
  if (used.codecs.empty()) return;
  // Pages are bound to the tables that wrote them. One file: its own hash. Several: of their hashes in order.
  const uint64_t both[2] = {tables.hash, from.tables->hash};
  tables.hash = choice.used.empty() ? from.tables->hash : Hash64(both, sizeof(both));
  choice.used.push_back(std::move(used));
}

absl::Status NothingHas(const std::vector<std::string>& missing, const std::string& model_path,
                        const std::vector<std::string>& looked,
                        const std::vector<std::string>& notes) {
  const std::string what = absl::StrJoin(missing, ",");
  const std::string where = looked.empty() ? "there is none for this model"
                                           : absl::StrCat("not in ", absl::StrJoin(looked, ", "));
  return absl::FailedPreconditionError(
      absl::StrCat("--kv ", what, " needs a calibration (", where,
                   notes.empty() ? "" : absl::StrCat("; ", absl::StrJoin(notes, "; ")),
                   "); make one with: kvring calibrate -m ", model_path, " -f TEXT --kv ", what));
}

}  // namespace

absl::StatusOr<CalibrationChoice> FindCalibration(const std::vector<std::string>& files,
                                                  const std::vector<std::string>& codecs,
                                                  const std::string& model_path,
                                                  const OpenModel& model, int block_tokens) {
  CalibrationChoice choice;
  std::vector<std::string> missing = NeededTables(codecs);
  if (missing.empty() && files.empty()) return choice;
  KVRING_ASSIGN_OR_RETURN(const ModelSide side, SideOf(model, block_tokens));
  auto tables = std::make_shared<CodecTables>();
  std::vector<std::string> looked, notes;
  for (const std::string& path : files.empty() ? UsualPlaces(side.hash) : files) {
    if (missing.empty() && files.empty()) break;
    const absl::StatusOr<Calibration> calibration = ReadFitting(path, side);
    if (!calibration.ok() && !files.empty()) return calibration.status();
    if (!calibration.ok()) {
      // One that comes with the program for another model is no news; a damaged one is.
      if (calibration.status().code() != absl::StatusCode::kFailedPrecondition)
        notes.emplace_back(calibration.status().message());
      continue;
    }
    looked.push_back(
        absl::StrCat(path, ", which has ", absl::StrJoin(calibration->info.codecs, ",")));
    Take(path, *calibration, missing, *tables, choice);
  }
  if (!missing.empty()) return NothingHas(missing, model_path, looked, notes);
  if (!choice.used.empty()) choice.tables = std::move(tables);
  return choice;
}

std::string DescribeCalibration(const UsedCalibration& used) {
  return absl::StrCat(
      absl::StrJoin(used.codecs, ", "), " of ", used.file, " (",
      absl::StrJoin(used.info.texts, ", "), ", ", Grouped(used.info.windows), " windows of ",
      Grouped(used.info.window), " tokens",
      used.info.update && Holds(used.codecs, kTcTableId)
          ? absl::StrCat("; tc updated from ", absl::StrJoin(used.info.update->texts, ", "))
          : "",
      ")");
}

const CalibrationInfo* TcInfo(const std::vector<UsedCalibration>& used) {
  const auto one = std::find_if(used.begin(), used.end(), [](const UsedCalibration& candidate) {
    return Holds(candidate.codecs, kTcTableId);
  });
  return one == used.end() ? nullptr : &one->info;
}

absl::StatusOr<std::string> CachedCalibrationPath(const OpenModel& model) {
  const std::string folder = CacheFolder();
  if (folder.empty())
    return absl::FailedPreconditionError(
        "neither XDG_CACHE_HOME nor HOME says where to put it: use -o");
  KVRING_ASSIGN_OR_RETURN(const Hash128Value hash, ModelFingerprint(*model.file));
  return absl::StrCat(folder, "/", HashHex(hash), ".safetensors");
}

}  // namespace kvring
