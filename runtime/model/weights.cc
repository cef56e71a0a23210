// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/weights.h"

#include <algorithm>
#include <map>

#include "absl/container/fixed_array.h"
#include "runtime/model/tensor_reader.h"

namespace kvring {
namespace {

constexpr char kEmbedding[] = "token_embd.weight";

std::string HeadName(const ModelConfig& config) {
  return config.tied_output ? kEmbedding : "output.weight";
}

// Reads and packs; counts what it packed.
class Loader {
 public:
  Loader(const GgufFile& file, const ModelConfig& config, const WeightsOptions& options)
      : file_(file), config_(config), options_(options) {}

  absl::StatusOr<LayerWeights> Layer(int index);
  // One linear layer whose rows are those of the named tensors in turn. The fp32 numbers live until it is packed.
  absl::StatusOr<std::unique_ptr<Linear>> Pack(const std::vector<std::string>& names, int64_t in);
  absl::StatusOr<std::vector<float>> Vector(const std::string& name);
  int64_t bytes() const { return bytes_; }

 private:
  absl::StatusOr<std::vector<float>> QkvBias(const std::string& blk);
  absl::StatusOr<std::unique_ptr<Linear>> PackBlocks(const std::vector<std::string>& names,
                                                     int64_t in);

  const GgufFile& file_;
  const ModelConfig& config_;
  const WeightsOptions& options_;
  int64_t bytes_ = 0;
};

absl::StatusOr<std::unique_ptr<Linear>> Loader::Pack(const std::vector<std::string>& names,
                                                     int64_t in) {
  if (options_.math == LinearMath::kBlocks && !options_.keep_for_backward)
    return PackBlocks(names, in);
  KVRING_ASSIGN_OR_RETURN(const std::vector<float> weights, ReadFloats(file_, names));
  LinearOptions linear_options;
  linear_options.math = options_.math;
  linear_options.keep_for_backward = options_.keep_for_backward;
  std::string error;
  std::unique_ptr<Linear> linear = MakeLinear(
      weights.data(), static_cast<int64_t>(weights.size()) / in, in, linear_options, &error);
  if (linear == nullptr) {
    return absl::UnimplementedError(absl::StrCat(file_.path(), ": tensor '", names.front(),
                                                 "' cannot be packed as ",
                                                 LinearMathName(options_.math), ": ", error));
  }
  bytes_ += linear->bytes();
  return linear;
}

// The file's own blocks, each tensor in its form.
absl::StatusOr<std::unique_ptr<Linear>> Loader::PackBlocks(const std::vector<std::string>& names,
                                                           int64_t in) {
  std::vector<BlockWeights> parts;
  for (const std::string& name : names) {
    KVRING_ASSIGN_OR_RETURN(BlockWeights part, ReadBlocks(file_, name));
    parts.push_back(std::move(part));
  }
  std::unique_ptr<Linear> linear = MakeBlockLinear(parts, in);
  bytes_ += linear->bytes();
  return linear;
}

absl::StatusOr<std::vector<float>> Loader::Vector(const std::string& name) {
  KVRING_ASSIGN_OR_RETURN(std::vector<float> values, ReadFloats(file_, {name}));
  bytes_ += static_cast<int64_t>(values.size() * sizeof(float));
  return values;
}

// Biases that the file has, zeros for those it has not; empty when it has none.
absl::StatusOr<std::vector<float>> Loader::QkvBias(const std::string& blk) {
  const ModelConfig& c = config_;
  std::vector<float> bias;
  bool any = false;
  const std::pair<const char*, int64_t> parts[] = {{"attn_q.bias", int64_t{c.query_heads} * c.dk},
                                                   {"attn_k.bias", int64_t{c.kv_heads} * c.dk},
                                                   {"attn_v.bias", int64_t{c.kv_heads} * c.dv}};
  for (const auto& [name, length] : parts) {
    if (file_.FindTensor(blk + name) == nullptr) {
      bias.resize(bias.size() + length);
      continue;
    }
    any = true;
    KVRING_ASSIGN_OR_RETURN(const std::vector<float> values, Vector(blk + name));
    bias.insert(bias.end(), values.begin(), values.end());
  }
  return any ? bias : std::vector<float>();
}

absl::StatusOr<LayerWeights> Loader::Layer(int index) {
  const ModelConfig& c = config_;
  const std::string blk = absl::StrCat("blk.", index, ".");
  LayerWeights layer;
  KVRING_ASSIGN_OR_RETURN(layer.attention_norm, Vector(blk + "attn_norm.weight"));
  KVRING_ASSIGN_OR_RETURN(layer.ffn_norm, Vector(blk + "ffn_norm.weight"));
  KVRING_ASSIGN_OR_RETURN(
      layer.qkv,
      Pack({blk + "attn_q.weight", blk + "attn_k.weight", blk + "attn_v.weight"}, c.hidden));
  KVRING_ASSIGN_OR_RETURN(layer.qkv_bias, QkvBias(blk));
  KVRING_ASSIGN_OR_RETURN(layer.output,
                          Pack({blk + "attn_output.weight"}, int64_t{c.query_heads} * c.dv));
  KVRING_ASSIGN_OR_RETURN(layer.gate_up,
                          Pack({blk + "ffn_gate.weight", blk + "ffn_up.weight"}, c.hidden));
  KVRING_ASSIGN_OR_RETURN(layer.down, Pack({blk + "ffn_down.weight"}, c.ffn));
  return layer;
}

}  // namespace

std::optional<BlockForm> FileBlocks(const GgufFile& file, const ModelConfig& config) {
  std::vector<std::string> names = {HeadName(config)};
  for (int i = 0; i < config.layers; ++i) {
    for (const char* name :
         {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
      names.push_back(absl::StrCat("blk.", i, ".", name, ".weight"));
  }
  std::map<BlockForm, int64_t> numbers;
  for (const std::string& name : names) {
    const GgufTensor* tensor = file.FindTensor(name);
    if (tensor == nullptr || tensor->format->split == nullptr) return std::nullopt;
    const CodeForm& form = tensor->format->form;
    numbers[{form.bits, form.group, form.offset}] += tensor->elements();
  }
  return std::max_element(numbers.begin(), numbers.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// The output head comes first: its fp32 numbers are the largest buffer, and nothing else is in memory yet.
absl::StatusOr<std::shared_ptr<const Weights>> Weights::Load(std::shared_ptr<const GgufFile> file,
                                                             const ModelConfig& config,
                                                             const WeightsOptions& options) {
  std::shared_ptr<Weights> weights(new Weights());
  weights->file_ = file;
  weights->config_ = config;
  weights->embedding_ = file->FindTensor(kEmbedding);
  Loader loader(*file, config, options);
  if (options.output_head) {
    KVRING_ASSIGN_OR_RETURN(weights->output_head_, loader.Pack({HeadName(config)}, config.hidden));
  }
  if (!options.output_head || !config.tied_output)
    KVRING_RETURN_IF_ERROR(CheckFloats(*file, kEmbedding));
  for (int i = 0; i < config.layers; ++i) {
    KVRING_ASSIGN_OR_RETURN(LayerWeights layer, loader.Layer(i));
    weights->layers_.push_back(std::move(layer));
  }
  KVRING_ASSIGN_OR_RETURN(weights->output_norm_, loader.Vector("output_norm.weight"));
  weights->bytes_ = loader.bytes();
  return std::shared_ptr<const Weights>(std::move(weights));
}

absl::Status Weights::Embed(std::span<const int32_t> ids, float* out) const {
  const GgufTensor& table = *embedding_;
  absl::FixedArray<uint8_t, 8192> row(static_cast<size_t>(table.row_bytes()));  // seldom allocates
  for (const int32_t id : ids) {
    KVRING_RETURN_IF_ERROR(
        file_->ReadTensor(table, id * table.row_bytes(), {row.data(), row.size()}));
    table.format->dequantize(row.data(), table.row() / table.format->block_elements, out);
    out += config_.hidden;
  }
  return absl::OkStatus();
}

}  // namespace kvring
