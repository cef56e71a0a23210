// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/model/gguf.h"
#include "runtime/model/gguf_lookup.h"

namespace kvring {
namespace {

constexpr char kFactorTensor[] = "rope_freqs.weight";

// Parameters of one declared scaling, as found.
struct Declared {
  std::string type;
  double factor = 0.0;  // 0: absent
  double original_context = 0.0;
  double base = 10000.0;
  int rotary = 0;
};

absl::Status Refuse(const RopeQuery& query, const std::string& what) {
  return absl::UnimplementedError(absl::StrCat(query.file->path(), ": ", what));
}

std::string Key(const RopeQuery& query, const char* suffix) {
  return absl::StrCat(query.architecture, ".rope.", suffix);
}

absl::StatusOr<Declared> ReadDeclared(const RopeQuery& query) {
  const GgufFile& file = *query.file;
  Declared declared;
  KVRING_ASSIGN_OR_RETURN(declared.base, FloatOr(file, Key(query, "freq_base"), declared.base));
  if (declared.base <= 1.0) {
    return Refuse(query, absl::StrCat("key '", Key(query, "freq_base"), "' is ", declared.base,
                                      "; it must exceed 1"));
  }
  KVRING_ASSIGN_OR_RETURN(declared.rotary, IntOr(file, Key(query, "dimension_count"),
                                                 query.head_dim, {2, query.head_dim}));
  if (declared.rotary % 2 != 0) {
    return Refuse(query,
                  absl::StrCat("RoPE turns pairs of channels, but ", declared.rotary,
                               " channels of head_dim ", query.head_dim, " are an odd number"));
  }
  KVRING_ASSIGN_OR_RETURN(declared.factor, FloatOr(file, Key(query, "scaling.factor"), 0.0));
  if (declared.factor == 0.0) {  // the older name of the linear factor
    KVRING_ASSIGN_OR_RETURN(declared.factor, FloatOr(file, Key(query, "scale_linear"), 0.0));
  }
  // A factor without a type means linear, as in llama.cpp.
  KVRING_ASSIGN_OR_RETURN(declared.type, StringOr(file, Key(query, "scaling.type"),
                                                  declared.factor == 0.0 ? "none" : "linear"));
  KVRING_ASSIGN_OR_RETURN(declared.original_context,
                          FloatOr(file, Key(query, "scaling.original_context_length"),
                                  static_cast<double>(query.trained_context)));
  return declared;
}

absl::Status NeedFactor(const RopeQuery& query, const Declared& declared) {
  if (declared.factor > 0.0) return absl::OkStatus();
  return Refuse(query, absl::StrCat("RoPE scaling '", declared.type, "' needs a positive '",
                                    Key(query, "scaling.factor"), "', found ", declared.factor));
}

absl::StatusOr<std::vector<float>> ReadFactors(const RopeQuery& query, int planes) {
  const GgufTensor* tensor = query.file->FindTensor(kFactorTensor);
  if (tensor == nullptr) return std::vector<float>();
  if (tensor->elements() != planes) {
    return Refuse(query, absl::StrCat("tensor '", kFactorTensor, "' has ", tensor->elements(),
                                      " frequency factors, ", planes, " are needed"));
  }
  std::vector<float> factors(planes);
  tensor->format->dequantize(tensor->data.data(), planes / tensor->format->block_elements,
                             factors.data());
  for (int i = 0; i < planes; ++i) {
    if (!std::isfinite(factors[i]) || factors[i] <= 0.0f) {
      return Refuse(query, absl::StrCat("tensor '", kFactorTensor, "' holds ", factors[i], " at ",
                                        i, "; frequency factors are positive"));
    }
  }
  return factors;
}

// llama3 declared by parameters instead of a tensor.
absl::StatusOr<std::vector<float>> DeclaredLlama3Factors(const RopeQuery& query,
                                                         const Declared& declared) {
  KVRING_RETURN_IF_ERROR(NeedFactor(query, declared));
  Llama3Scaling scaling;
  scaling.factor = declared.factor;
  KVRING_ASSIGN_OR_RETURN(scaling.low_freq_factor,
                          FloatOr(*query.file, Key(query, "scaling.low_freq_factor"), 0.0));
  KVRING_ASSIGN_OR_RETURN(scaling.high_freq_factor,
                          FloatOr(*query.file, Key(query, "scaling.high_freq_factor"), 0.0));
  KVRING_ASSIGN_OR_RETURN(scaling.original_context,
                          FloatOr(*query.file, Key(query, "scaling.original_context_length"), 0.0));
  if (scaling.low_freq_factor <= 0.0 || scaling.high_freq_factor <= scaling.low_freq_factor ||
      scaling.original_context <= 0.0) {
    return Refuse(query, absl::StrCat("RoPE scaling 'llama3' needs tensor '", kFactorTensor,
                                      "', or low_freq_factor below "
                                      "high_freq_factor and original_context_length under '",
                                      Key(query, "scaling."), "'"));
  }
  return Llama3Factors(scaling, declared.rotary, declared.base);
}

// YaRN (Peng et al. 2023, section 3.2-3.4): planes that turn often keep their frequency, slow ones are interpolated.
absl::Status ApplyYarn(const RopeQuery& query, const Declared& declared, RopeTable* table) {
  KVRING_RETURN_IF_ERROR(NeedFactor(query, declared));
  if (declared.original_context <= 0.0) {
    return Refuse(query, absl::StrCat("RoPE scaling 'yarn' needs '",
                                      Key(query, "scaling.original_context_length"), "'"));
  }
  const GgufFile& file = *query.file;
  // The paper's alpha and beta for Llama; files may say otherwise.
  KVRING_ASSIGN_OR_RETURN(const double fast,
                          FloatOr(file, Key(query, "scaling.yarn_beta_fast"), 32.0));
  KVRING_ASSIGN_OR_RETURN(const double slow,
                          FloatOr(file, Key(query, "scaling.yarn_beta_slow"), 1.0));
  KVRING_ASSIGN_OR_RETURN(const double mix_factor,
                          FloatOr(file, Key(query, "scaling.yarn_ext_factor"), 1.0));
  KVRING_ASSIGN_OR_RETURN(const double plain_attention,
                          FloatOr(file, Key(query, "scaling.attn_factor"), 1.0));
  KVRING_ASSIGN_OR_RETURN(const double attention,
                          FloatOr(file, Key(query, "scaling.yarn_attn_factor"), plain_attention));
  if (fast <= 0.0 || slow <= 0.0 || mix_factor < 0.0 || mix_factor > 1.0 || attention <= 0.0) {
    return Refuse(query, absl::StrCat("RoPE scaling 'yarn' has parameters out of range: beta_fast ",
                                      fast, ", beta_slow ", slow, ", ext_factor ", mix_factor,
                                      ", attn_factor ", attention));
  }
  // Plane that makes `turns` turns within the original length.
  const auto plane_of = [&](double turns) {
    return declared.rotary *
           std::log(declared.original_context / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(declared.base));
  };
  const double low = std::max(0.0, std::floor(plane_of(fast)));
  const double high = std::min(declared.rotary - 1.0, std::ceil(plane_of(slow)));
  for (int i = 0; i < table->planes(); ++i) {
    const double ramp = std::clamp((i - low) / std::max(0.001, high - low), 0.0,
                                   1.0);  // 0.001: no division by zero
    const double keep = (1.0 - ramp) * mix_factor;
    table->inv_freq[i] *= (1.0 - keep) / declared.factor + keep;
  }
  // Entropy correction: sqrt(1/t) = 0.1 ln(s) + 1 on queries and keys alike.
  table->attention_scale = static_cast<float>(attention * (0.1 * std::log(declared.factor) + 1.0));
  return absl::OkStatus();
}

absl::Status ApplyType(const RopeQuery& query, const Declared& declared, RopeTable* table) {
  if (declared.type == "none" || declared.type == "llama3") return absl::OkStatus();
  if (declared.type == "yarn") return ApplyYarn(query, declared, table);
  if (declared.type != "linear") {
    return Refuse(query, absl::StrCat("RoPE scaling '", declared.type, "' of key '",
                                      Key(query, "scaling.type"),
                                      "' cannot be applied; none, linear, yarn and llama3 can"));
  }
  KVRING_RETURN_IF_ERROR(NeedFactor(query, declared));
  for (double& frequency : table->inv_freq) frequency /= declared.factor;
  return absl::OkStatus();
}

}  // namespace

std::vector<float> Llama3Factors(const Llama3Scaling& scaling, int rotary, double base) {
  std::vector<float> factors(rotary / 2);
  for (int i = 0; i < rotary / 2; ++i) {
    const double wavelength = 2.0 * std::numbers::pi * std::pow(base, 2.0 * i / rotary);
    const double waves = scaling.original_context / wavelength;  // within the original length
    const double smooth = std::clamp(
        (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor),
        0.0, 1.0);
    factors[i] = static_cast<float>(1.0 / ((1.0 - smooth) / scaling.factor + smooth));
  }
  return factors;
}

absl::StatusOr<RopeFound> DeriveRope(const RopeQuery& query) {
  KVRING_ASSIGN_OR_RETURN(const Declared declared, ReadDeclared(query));
  KVRING_ASSIGN_OR_RETURN(std::vector<float> factors, ReadFactors(query, declared.rotary / 2));
  if (declared.type == "llama3" && factors.empty()) {
    KVRING_ASSIGN_OR_RETURN(factors, DeclaredLlama3Factors(query, declared));
  }
  RopeFound found;
  found.table =
      MakeRopeTable(query.pairing, query.head_dim, declared.rotary, declared.base, factors);
  KVRING_RETURN_IF_ERROR(ApplyType(query, declared, &found.table));
  const bool named = declared.type != "none" && declared.type != "llama3";
  found.scaling = factors.empty() ? declared.type
                  : named         ? declared.type + " + llama3 factors"
                                  : "llama3 factors";
  return found;
}

}  // namespace kvring
