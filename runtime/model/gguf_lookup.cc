// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/gguf_lookup.h"

#include <cmath>

namespace kvring {
namespace {

// The one integer of a key, per-layer arrays included.
absl::StatusOr<int64_t> ScalarOrUniform(const GgufFile& file, const std::string& key) {
  const GgufValue* value = file.FindValue(key);
  const auto* array = value == nullptr ? nullptr : std::get_if<std::shared_ptr<GgufArray>>(value);
  if (array == nullptr) return file.GetInt(key);
  const std::vector<GgufValue>& values = (*array)->values;
  for (const GgufValue& element : values) {
    if (element != values.front()) {
      return absl::UnimplementedError(absl::StrCat(
          file.path(), ": key '", key, "' differs between layers; one value for all is supported"));
    }
  }
  const int32_t* signed_value = values.empty() ? nullptr : std::get_if<int32_t>(&values.front());
  const uint32_t* unsigned_value =
      values.empty() ? nullptr : std::get_if<uint32_t>(&values.front());
  if (signed_value != nullptr) return *signed_value;
  if (unsigned_value != nullptr) return *unsigned_value;
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), ": key '", key, "' is not an array of 32-bit integers"));
}

}  // namespace

absl::StatusOr<int64_t> RequireInt(const GgufFile& file, const std::string& key, IntRange range) {
  KVRING_ASSIGN_OR_RETURN(const int64_t value, ScalarOrUniform(file, key));
  if (value >= range.least && value <= range.most) return value;
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": key '", key, "' is ", value, "; ",
                                                 range.least, " to ", range.most, " are allowed"));
}

absl::StatusOr<int64_t> IntOr(const GgufFile& file, const std::string& key, int64_t absent,
                              IntRange range) {
  if (file.FindValue(key) == nullptr) return absent;
  return RequireInt(file, key, range);
}

absl::StatusOr<double> FloatOr(const GgufFile& file, const std::string& key, double absent) {
  const GgufValue* value = file.FindValue(key);
  if (value == nullptr) return absent;
  if (const bool* flag = std::get_if<bool>(value)) return *flag ? 1.0 : 0.0;
  KVRING_ASSIGN_OR_RETURN(const double number, file.GetFloat(key));
  if (std::isfinite(number)) return number;
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), ": key '", key, "' is not a finite number"));
}

absl::StatusOr<std::string> StringOr(const GgufFile& file, const std::string& key,
                                     const std::string& absent) {
  if (file.FindValue(key) == nullptr) return absent;
  return file.GetString(key);
}

}  // namespace kvring
