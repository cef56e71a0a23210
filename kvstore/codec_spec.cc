// SPDX-License-Identifier: Apache-2.0
#include "kvstore/codec_spec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kvring {
namespace {

std::string KnownCodecs() {
  return absl::StrCat(
      absl::StrJoin(AllCodecs(), ", ",
                    [](std::string* out, const CodecRow& row) { *out += row.name; }),
      ", tc@BITS");
}

bool KeysAndValuesApart(const std::string& spec) {
  return spec.find("k=") != std::string::npos || spec.find("v=") != std::string::npos;
}

absl::Status UnknownCodec(const std::string& spec, const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat(
      name.empty() ? "empty codec name" : "unknown codec '",
      name.empty() ? "" : absl::StrCat(name, "'"),
      spec == name ? "" : absl::StrCat(" in '", spec, "'"), "; there are ", KnownCodecs()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(const std::string& spec,
                                                       const KvShape& shape,
                                                       const std::vector<const RopeTable*>& rope,
                                                       std::shared_ptr<const CodecTables> tables) {
  if (KeysAndValuesApart(spec)) {
    return absl::UnimplementedError(
        absl::StrCat("'", spec,
                     "': codecs for keys and values apart do not exist yet; give "
                     "one codec for both, of ",
                     KnownCodecs()));
  }
  std::vector<std::string> parts = absl::StrSplit(spec, ':');
  const CodecRow* const row = FindCodec(parts[0]);
  if (row == nullptr) return UnknownCodec(spec, parts[0]);
  CodecOptions options;
  options.shape = shape;
  options.rope = rope;
  options.tables = std::move(tables);
  options.flags.assign(parts.begin() + 1, parts.end());
  CodecMade made = row->make(*row, options);
  if (made.codec == nullptr) return absl::InvalidArgumentError(made.error);
  return std::shared_ptr<const Codec>(std::move(made.codec));
}

bool NeedsCalibration(const std::string& spec) {
  const CodecRow* const row = FindCodec(spec.substr(0, spec.find(':')));
  return row != nullptr && row->calibrated;
}

std::string SpecForContext(const std::string& spec, int64_t context) {
  const std::vector<std::string> parts = absl::StrSplit(spec, ':');
  const CodecRow* const row = FindCodec(parts[0]);
  if (context < kAdaptContext || row == nullptr || row->rate == 0) return spec;
  for (const std::string& flag : parts) {
    if (flag == "adapt" || flag == "static") return spec;
  }
  return absl::StrCat(spec, ":adapt");
}

std::vector<std::string> SplitCodecList(const std::string& list) {
  std::vector<std::string> specs;
  for (const absl::string_view part : absl::StrSplit(list, ';')) {
    const bool apart = KeysAndValuesApart(std::string(part));
    for (const absl::string_view item : absl::StrSplit(part, apart ? ';' : ',')) {
      const absl::string_view spec = absl::StripAsciiWhitespace(item);
      if (!spec.empty()) specs.emplace_back(spec);
    }
  }
  return specs;
}

}  // namespace kvring
