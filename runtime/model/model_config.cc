// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/model_config.h"

#include <cmath>
#include <cstring>
#include <unordered_set>

#include "absl/strings/str_join.h"
#include "runtime/model/gguf.h"
#include "runtime/model/gguf_lookup.h"
#include "runtime/model/gguf_parser.h"
#include "runtime/model/rope_config.h"

namespace kvring {
namespace {

// Model families: how their files pair RoPE's channels. GGUF's llama files hold permuted Q and K rows.
struct Family {
  const char* architecture;
  RopePairing pairing;
};
constexpr Family kFamilies[] = {
    {"llama", RopePairing::kInterleaved},
    {"qwen2", RopePairing::kHalfSplit},
};

// Keys that change the arithmetic when they are there with another value than this: not built, so refused.
struct NeutralKey {
  const char* suffix;
  double value;
};
constexpr NeutralKey kNeutralKeys[] = {
    {"expert_count", 0},
    {"attention.causal", 1},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"logit_scale", 1},
    {"embedding_scale", 1},
    {"residual_scale", 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"use_parallel_residual", 0},
    {"rope.scaling.yarn_log_multiplier", 0},
};

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 65536;
constexpr int64_t kMaxHeadDim = 65536;
constexpr int64_t kMaxWidth = 1 << 24;  // hidden, feed-forward
constexpr int64_t kMaxContext = int64_t{1} << 40;

class Deriver {
 public:
  Deriver(const GgufFile& file, ModelConfig* config) : file_(file), c_(*config) {}

  absl::Status Run() {
    KVRING_RETURN_IF_ERROR(FindFamily());
    KVRING_RETURN_IF_ERROR(ReadShape());
    KVRING_RETURN_IF_ERROR(ReadHeadDims());
    KVRING_RETURN_IF_ERROR(CheckNeutralKeys());
    KVRING_RETURN_IF_ERROR(CheckModelTensors());
    for (int layer = 0; layer < c_.layers; ++layer) KVRING_RETURN_IF_ERROR(CheckLayer(layer));
    KVRING_RETURN_IF_ERROR(RefuseUnknownTensors());
    KVRING_RETURN_IF_ERROR(CheckVocabulary());
    return SetRope();
  }

 private:
  std::string Key(const char* suffix) const { return absl::StrCat(c_.architecture, ".", suffix); }
  absl::Status Refuse(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", what));
  }
  absl::Status FindFamily();
  absl::Status ReadShape();
  absl::Status ReadHeadDims();
  absl::Status CheckNeutralKeys() const;
  absl::Status CheckScaleAndWindow() const;
  absl::Status CheckTensor(const std::string& name, const std::vector<int64_t>& dims);
  absl::Status CheckOptional(const std::string& name, int64_t length);
  absl::Status CheckModelTensors();
  absl::Status CheckOutput();
  absl::Status CheckLayer(int layer);
  absl::Status RefuseUnknownTensors() const;
  absl::Status CheckVocabulary();
  absl::Status SetRope();

  const GgufFile& file_;
  ModelConfig& c_;
  const Family* family_ = nullptr;
  std::unordered_set<std::string> known_;  // tensors that have a part in the model
};

absl::Status Deriver::FindFamily() {
  KVRING_ASSIGN_OR_RETURN(c_.architecture, file_.GetString("general.architecture"));
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    if (c_.architecture == family.architecture) family_ = &family;
    names.push_back(family.architecture);
  }
  if (family_ == nullptr) {
    return absl::UnimplementedError(absl::StrCat(file_.path(), ": key 'general.architecture' is ",
                                                 Quoted(c_.architecture), "; supported are ",
                                                 absl::StrJoin(names, ", ")));
  }
  KVRING_ASSIGN_OR_RETURN(c_.name, StringOr(file_, "general.name", ""));
  return absl::OkStatus();
}

absl::Status Deriver::ReadShape() {
  KVRING_ASSIGN_OR_RETURN(c_.layers, RequireInt(file_, Key("block_count"), {1, kMaxLayers}));
  KVRING_ASSIGN_OR_RETURN(c_.hidden, RequireInt(file_, Key("embedding_length"), {1, kMaxWidth}));
  KVRING_ASSIGN_OR_RETURN(c_.ffn, RequireInt(file_, Key("feed_forward_length"), {1, kMaxWidth}));
  KVRING_ASSIGN_OR_RETURN(c_.query_heads,
                          RequireInt(file_, Key("attention.head_count"), {1, kMaxHeads}));
  KVRING_ASSIGN_OR_RETURN(c_.kv_heads, IntOr(file_, Key("attention.head_count_kv"), c_.query_heads,
                                             {1, c_.query_heads}));
  if (c_.query_heads % c_.kv_heads != 0) {
    return Refuse(absl::StrCat("key '", Key("attention.head_count_kv"), "' is ", c_.kv_heads,
                               ", which does not divide the ", c_.query_heads, " query heads"));
  }
  KVRING_ASSIGN_OR_RETURN(c_.trained_context,
                          IntOr(file_, Key("context_length"), 0, {0, kMaxContext}));
  KVRING_ASSIGN_OR_RETURN(const double epsilon,
                          FloatOr(file_, Key("attention.layer_norm_rms_epsilon"), -1.0));
  // Llama's files always say it, and a wrong one is a silent fault: no default.
  if (epsilon <= 0.0 || epsilon > 1.0) {
    return Refuse(absl::StrCat("key '", Key("attention.layer_norm_rms_epsilon"),
                               epsilon == -1.0 ? "' is missing" : "' is not between 0 and 1"));
  }
  c_.rms_epsilon = static_cast<float>(epsilon);
  return absl::OkStatus();
}

absl::Status Deriver::ReadHeadDims() {
  const bool divides = c_.hidden % c_.query_heads == 0;
  const int64_t by_division = divides ? c_.hidden / c_.query_heads : 0;
  KVRING_ASSIGN_OR_RETURN(c_.dk,
                          IntOr(file_, Key("attention.key_length"), by_division, {1, kMaxHeadDim}));
  KVRING_ASSIGN_OR_RETURN(
      c_.dv, IntOr(file_, Key("attention.value_length"), by_division, {1, kMaxHeadDim}));
  if (c_.dk != 0 && c_.dv != 0) return absl::OkStatus();
  return Refuse(absl::StrCat("head_dim is unknown: the file has no '",
                             Key(c_.dk == 0 ? "attention.key_length" : "attention.value_length"),
                             "', and ", c_.query_heads, " heads do not divide the hidden size ",
                             c_.hidden));
}

absl::Status Deriver::CheckNeutralKeys() const {
  for (const NeutralKey& neutral : kNeutralKeys) {
    KVRING_ASSIGN_OR_RETURN(const double found, FloatOr(file_, Key(neutral.suffix), neutral.value));
    if (found != neutral.value) {
      return absl::UnimplementedError(
          absl::StrCat(file_.path(), ": key '", Key(neutral.suffix), "' is ", found,
                       ", which cannot be applied; only ", neutral.value, " can"));
    }
  }
  return CheckScaleAndWindow();
}

absl::Status Deriver::CheckScaleAndWindow() const {
  const double usual = 1.0 / std::sqrt(static_cast<double>(c_.dk));
  KVRING_ASSIGN_OR_RETURN(const double scale, FloatOr(file_, Key("attention.scale"), usual));
  if (std::abs(scale - usual) > 1e-6 * usual) {  // the file's number is fp32
    return absl::UnimplementedError(
        absl::StrCat(file_.path(), ": key '", Key("attention.scale"), "' is ", scale,
                     ", which cannot be applied; only 1/sqrt(head_dim) can"));
  }
  KVRING_ASSIGN_OR_RETURN(const double window,
                          FloatOr(file_, Key("attention.sliding_window"), 0.0));
  if (window != 0.0 &&
      (c_.trained_context == 0 || window < static_cast<double>(c_.trained_context))) {
    return absl::UnimplementedError(absl::StrCat(file_.path(), ": key '",
                                                 Key("attention.sliding_window"), "' is ", window,
                                                 ": attention within a window cannot be applied"));
  }
  return absl::OkStatus();
}

absl::Status Deriver::CheckTensor(const std::string& name, const std::vector<int64_t>& dims) {
  const GgufTensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) return Refuse(absl::StrCat("tensor '", name, "' is missing"));
  std::vector<int64_t> found = tensor->dims;
  while (found.size() > dims.size() && found.back() == 1) found.pop_back();
  if (found != dims) {
    return Refuse(absl::StrCat("tensor '", name, "' has shape [", absl::StrJoin(tensor->dims, ", "),
                               "], the header's numbers ask for [", absl::StrJoin(dims, ", "),
                               "]"));
  }
  known_.insert(name);
  return absl::OkStatus();
}

absl::Status Deriver::CheckOptional(const std::string& name, int64_t length) {
  return file_.FindTensor(name) == nullptr ? absl::OkStatus() : CheckTensor(name, {length});
}

absl::Status Deriver::CheckModelTensors() {
  const GgufTensor* embedding = file_.FindTensor("token_embd.weight");
  if (embedding == nullptr) return Refuse("tensor 'token_embd.weight' is missing");
  c_.vocab = static_cast<int>(embedding->rows());
  KVRING_RETURN_IF_ERROR(CheckTensor("token_embd.weight", {c_.hidden, c_.vocab}));
  KVRING_RETURN_IF_ERROR(CheckTensor("output_norm.weight", {c_.hidden}));
  if (file_.FindTensor("rope_freqs.weight") != nullptr)
    known_.insert("rope_freqs.weight");  // DeriveRope checks it
  return CheckOutput();
}

// F20. A file without output.weight shares the embedding, unless it says that it does not. One with output.weight uses
// it, whatever it says about sharing; when it claims sharing and the two differ, a warning tells.
absl::Status Deriver::CheckOutput() {
  const std::string tie_key = Key("tie_word_embeddings");
  const GgufValue* declared = file_.FindValue(tie_key);
  bool says_tied = false;
  if (declared != nullptr) {
    KVRING_ASSIGN_OR_RETURN(says_tied, file_.GetBool(tie_key));
  }
  const GgufTensor* output = file_.FindTensor("output.weight");
  c_.tied_output = output == nullptr;
  if (output == nullptr) {
    if (declared == nullptr || says_tied) return absl::OkStatus();
    return Refuse(absl::StrCat("tensor 'output.weight' is missing, and key '", tie_key,
                               "' says that the embedding does not stand in for it"));
  }
  KVRING_RETURN_IF_ERROR(CheckTensor("output.weight", {c_.hidden, c_.vocab}));
  const GgufTensor* embedding = file_.FindTensor("token_embd.weight");
  const bool same =
      output->format == embedding->format && output->data.size() == embedding->data.size() &&
      (!says_tied ||
       std::memcmp(output->data.data(), embedding->data.data(), output->data.size()) == 0);
  if (says_tied && !same) {
    c_.warnings.push_back(
        absl::StrCat("key '", tie_key,
                     "' says that output and embedding are one, but tensor "
                     "'output.weight' differs from 'token_embd.weight': it is used"));
  }
  return absl::OkStatus();
}

absl::Status Deriver::CheckLayer(int layer) {
  const std::string blk = absl::StrCat("blk.", layer, ".");
  const int64_t q = int64_t{c_.query_heads} * c_.dk;
  const int64_t k = int64_t{c_.kv_heads} * c_.dk;
  const int64_t v = int64_t{c_.kv_heads} * c_.dv;
  KVRING_RETURN_IF_ERROR(CheckTensor(blk + "attn_norm.weight", {c_.hidden}));
  KVRING_RETURN_IF_ERROR(CheckTensor(blk + "attn_q.weight", {c_.hidden, q}));
  KVRING_RETURN_IF_ERROR(CheckTensor(blk + "attn_k.weight", {c_.hidden, k}));
  KVRING_RETURN_IF_ERROR(CheckTensor(blk + "attn_v.weight", {c_.hidden, v}));
  KVRING_RETURN_IF_ERROR(CheckOptional(blk + "attn_q.bias", q));
  KVRING_RETURN_IF_ERROR(CheckOptional(blk + "attn_k.bias", k));
  KVRING_RETURN_IF_ERROR(CheckOptional(blk + "attn_v.bias", v));
  KVRING_RETURN_IF_ERROR(
      CheckTensor(blk + "attn_output.weight", {int64_t{c_.query_heads} * c_.dv, c_.hidden}));
  KVRING_RETURN_IF_ERROR(CheckTensor(blk + "ffn_norm.weight", {c_.hidden}));
  KVRING_RETURN_IF_ERROR(CheckTensor(blk + "ffn_gate.weight", {c_.hidden, c_.ffn}));
  KVRING_RETURN_IF_ERROR(CheckTensor(blk + "ffn_up.weight", {c_.hidden, c_.ffn}));
  return CheckTensor(blk + "ffn_down.weight", {c_.ffn, c_.hidden});
}

// A tensor that nobody reads would be a part of the model left out in silence.
absl::Status Deriver::RefuseUnknownTensors() const {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (known_.contains(tensor.name)) continue;
    return absl::UnimplementedError(absl::StrCat(file_.path(), ": tensor ", Quoted(tensor.name),
                                                 " has no part in the ", c_.architecture,
                                                 " model that can be run here"));
  }
  return absl::OkStatus();
}

absl::Status Deriver::CheckVocabulary() {
  const GgufValue* tokens = file_.FindValue("tokenizer.ggml.tokens");
  const auto* array = tokens == nullptr ? nullptr : std::get_if<std::shared_ptr<GgufArray>>(tokens);
  if (array == nullptr) return absl::OkStatus();  // a model without a tokenizer still runs on ids
  const int64_t spelled = static_cast<int64_t>((*array)->values.size());
  if (spelled > c_.vocab) {
    return Refuse(absl::StrCat("key 'tokenizer.ggml.tokens' has ", spelled,
                               " tokens, tensor 'token_embd.weight' only ", c_.vocab, " rows"));
  }
  if (spelled < c_.vocab) {
    c_.warnings.push_back(absl::StrCat(c_.vocab - spelled,
                                       " rows of 'token_embd.weight' have no spelling in "
                                       "'tokenizer.ggml.tokens'"));
  }
  return absl::OkStatus();
}

absl::Status Deriver::SetRope() {
  RopeQuery query;
  query.file = &file_;
  query.architecture = c_.architecture;
  query.pairing = family_->pairing;
  query.head_dim = c_.dk;
  query.trained_context = c_.trained_context;
  KVRING_ASSIGN_OR_RETURN(RopeFound found, DeriveRope(query));
  c_.rope_scaling = found.scaling;
  c_.rope.assign(c_.layers, found.table);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> DeriveModelConfig(const GgufFile& file) {
  ModelConfig config;
  KVRING_RETURN_IF_ERROR(Deriver(file, &config).Run());
  config.warnings.insert(config.warnings.begin(), file.warnings().begin(), file.warnings().end());
  return config;
}

}  // namespace kvring
