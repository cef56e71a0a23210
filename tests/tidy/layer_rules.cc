// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/tidy/rules.h"

namespace kvring::tidy {
namespace {

// The first row whose folder holds a file says what it may include of ours. Folders that are no row are free.
struct Layer {
  const char* folder;
  std::vector<std::string> may_include;
};

const std::vector<Layer>& Layers() {
  static const std::vector<Layer> kLayers = {
      {"kernels", {"kernels/"}},
      {"runtime/base", {"kernels/", "runtime/base/"}},
      {"kvstore", {"kernels/", "runtime/base/", "kvstore/"}},
      {"dist", {"kernels/", "runtime/base/", "dist/"}},
      {"runtime", {"kernels/", "kvstore/", "dist/", "runtime/", "kvring/v1/"}},
      {"launch", {"kernels/", "kvstore/", "dist/", "runtime/", "launch/", "kvring/v1/"}},
  };
  return kLayers;
}

// Headers of a library and the only places that may include them; places end in '/' for folders, or are a file's
// beginning. sources_only: no header of ours may bring them to others (compile time, and names that leak).
struct Library {
  std::vector<std::string> headers;
  std::vector<std::string> places;
  bool sources_only;
};

const std::vector<Library>& Libraries() {
  static const std::vector<Library> kLibraries = {
      {{"absl/"}, {"runtime/", "kvstore/", "dist/", "launch/"}, false},
      {{"mpi.h"}, {"dist/mpi_"}, true},
      {{"nccl.h"}, {"dist/nccl_"}, true},
      {{"grpc", "grpcpp/"}, {"launch/", "kvstore/"}, true},
      {{"CLI/"}, {"launch/"}, true},
      {{"nlohmann/"}, {"runtime/", "kvstore/", "launch/"}, true},
      {{"spdlog/"}, {"runtime/base/log"}, true},
      {{"google/protobuf", "kvring/v1/"}, {"runtime/", "kvstore/", "launch/"}, true},
      {{"pcre2.h"}, {"runtime/text/"}, true},
      {{"xxhash.h"}, {"runtime/base/hash"}, true},
      {{"oneapi/", "dnnl", "cblas"}, {"kernels/"}, true},
      {{"hwy/"}, {"kernels/"}, false},
      {{"immintrin.h", "x86intrin.h", "arm_neon.h"}, {"kernels/cpu/"}, false},
      {{"Eigen/"}, {"kernels/codec/tc_", "runtime/calibrate/tc_"}, true},
      {{"omp.h"}, {"kernels/"}, true},
      {{"cuda", "cublas", "cudnn", "mma.h"}, {"kernels/cuda/", "dist/nccl_"}, false},
      {{"regex"}, {}, true},  // PCRE2 is the one we use: linear limits, Unicode
  };
  return kLibraries;
}

bool StartsWithAny(const std::string& text, const std::vector<std::string>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const std::string& b) { return text.rfind(b, 0) == 0; });
}

bool IsOurs(const std::string& name) {
  return StartsWithAny(name, {"kernels/", "runtime/", "kvstore/", "dist/", "launch/", "kvring/v1/",
                              "tests/", "benchmarks/"});
}

const Layer* LayerOf(const SourceFile& file) {
  for (const Layer& layer : Layers()) {
    if (file.Under(layer.folder)) return &layer;
  }
  return nullptr;
}

}  // namespace

Findings CheckLayers(const SourceFile& file) {
  Findings findings;
  const Layer* layer = LayerOf(file);
  if (!file.IsCpp() || layer == nullptr) return findings;
  for (const auto& [line, quoted] : Includes(file)) {
    const std::string name = quoted.substr(1, quoted.size() - 2);
    if (quoted[0] == '"' && name.find('/') == std::string::npos) {
      findings.push_back({file.path, line, "include by the path from the project's root: " + name});
    } else if (IsOurs(name) && !StartsWithAny(name, layer->may_include)) {
      findings.push_back(
          {file.path, line, std::string(layer->folder) + " may not include " + name});
    }
  }
  return findings;
}

Findings CheckLibraries(const SourceFile& file) {
  Findings findings;
  if (!file.IsCpp() || file.IsTest()) return findings;
  for (const auto& [line, quoted] : Includes(file)) {
    const std::string name = quoted.substr(1, quoted.size() - 2);
    if (IsOurs(name) && name.rfind("kvring/v1/", 0) != 0) continue;
    for (const Library& library : Libraries()) {
      if (!StartsWithAny(name, library.headers)) continue;
      const bool header = file.EndsWith(".h") || file.EndsWith(".cuh");
      if (!StartsWithAny(file.path, library.places)) {
        findings.push_back({file.path, line, name + " does not belong here"});
      } else if (library.sources_only && header) {
        findings.push_back({file.path, line, name + " belongs into a source file, not a header"});
      }
    }
  }
  return findings;
}

}  // namespace kvring::tidy
