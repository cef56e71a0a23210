// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "kernels/half.h"
#include "runtime/model/rope_config.h"
#include "runtime/model/tiny_vocab.h"

namespace kvring {
namespace {

constexpr double kLogitDeviation = 3.0;  // of the logits over the vocabulary, in a step
// Queries are longer than keys, so that attention chooses instead of averaging (scores deviate by 2, not 1).
constexpr double kQueryGain = 2.0;
// What layers add to the residual stream outweighs the embedding; else a tied head would repeat the last token forever.
constexpr double kBranchGain = 4.0;
constexpr double kNormSpread = 0.1;  // norm weights are 1 +- this
constexpr double kSinkDominance =
    100.0;  // channel 0 of the sink token against all its other channels together
constexpr int kBiasChannels = 3;                    // per head, F22
constexpr int64_t kMaxElements = int64_t{1} << 31;  // of one tensor: test models, not real ones

// Finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of x.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Numbers of one tensor: nearly normal, mean 0, deviation 1, as the sum of four uniform 16-bit numbers. Integers until
// the last multiplication: the same bits everywhere.
class Normal {
 public:
  Normal(uint64_t seed, const std::string& tensor) {
    key_ = 0xcbf29ce484222325u;  // FNV-1a of the name
    for (const char c : tensor) key_ = (key_ ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    key_ = Mix(key_ + seed * 0x9e3779b97f4a7c15u);
  }
  double operator()(int64_t index) const {
    const uint64_t bits = Mix(key_ + static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u);
    const int64_t sum =
        (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    return static_cast<double>(sum - 2 * 65535) / kDeviation;
  }

 private:
  static constexpr double kDeviation = 37837.2;  // sqrt(4 (2^32 - 1) / 12), of the sum
  uint64_t key_;
};

std::string PackHalf(const std::vector<float>& x) {
  std::string bytes(x.size() * sizeof(Half), '\0');
  for (size_t i = 0; i < x.size(); ++i) {
    const Half half = FloatToHalfSaturated(x[i]);
    std::memcpy(bytes.data() + i * sizeof(Half), &half, sizeof(Half));
  }
  return bytes;
}

std::string PackQ80(const std::vector<float>& x) {
  constexpr size_t kBlock = 32;
  std::string bytes;
  for (size_t i = 0; i < x.size(); i += kBlock) {
    float largest = 0.0f;
    for (size_t j = 0; j < kBlock; ++j) largest = std::max(largest, std::abs(x[i + j]));
    const Half d = FloatToHalfSaturated(largest / 127.0f);
    const float scale = HalfToFloat(d);
    bytes.append(reinterpret_cast<const char*>(&d), sizeof(d));
    for (size_t j = 0; j < kBlock; ++j) {
      const float code =
          scale == 0.0f ? 0.0f : std::clamp(std::nearbyint(x[i + j] / scale), -127.0f, 127.0f);
      bytes.push_back(static_cast<char>(static_cast<int8_t>(code)));
    }
  }
  return bytes;
}

const WeightFormat* FindByName(const std::string& name) {
  for (const WeightFormat& format : AllWeightFormats()) {
    if (absl::AsciiStrToUpper(name) == format.name) return &format;
  }
  return nullptr;
}

class Generator {
 public:
  explicit Generator(const TinyModelOptions& options) : o_(options) {
    if (o_.value_dim == 0) o_.value_dim = o_.head_dim;
  }
  absl::StatusOr<GgufWriter> Run();

 private:
  using Element = std::function<double(int64_t row, int64_t column, double normal)>;

  absl::Status Check();
  absl::Status CheckShape() const;
  absl::Status CheckType();
  void SetMetadata();
  void SetRope();
  absl::Status AddMatrix(const std::string& name, int64_t rows, int64_t columns,
                         const Element& element);
  absl::Status AddVector(const std::string& name, int64_t length, const Element& element);
  absl::Status AddEmbedding(const std::string& name, const std::string& numbers_of);
  absl::Status AddLayer(int layer);
  absl::Status AddBiases(const std::string& blk);
  absl::Status AddNorm(const std::string& name);
  bool HasSink() const { return o_.sink_scale > 0.0f; }
  std::string Key(const char* suffix) const { return absl::StrCat(o_.architecture, ".", suffix); }

  TinyModelOptions o_;
  const WeightFormat* format_ = nullptr;
  GgufWriter writer_;
};

absl::Status Generator::CheckShape() const {
  const std::pair<const char*, int64_t> positive[] = {{"layers", o_.layers},
                                                      {"hidden", o_.hidden},
                                                      {"query heads", o_.query_heads},
                                                      {"KV heads", o_.kv_heads},
                                                      {"head_dim", o_.head_dim},
                                                      {"value_dim", o_.value_dim},
                                                      {"ffn", o_.ffn}};
  for (const auto& [name, value] : positive) {
    if (value < 1 || value > 65536)
      return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; 1 to 65536"));
  }
  if (o_.query_heads % o_.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(o_.kv_heads, " KV heads do not divide ", o_.query_heads, " query heads"));
  }
  if (o_.head_dim % 2 != 0) return absl::InvalidArgumentError("head_dim is odd; RoPE turns pairs");
  if (o_.vocab < TinyVocab::kLeast || o_.vocab > (1 << 20)) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab is ", o_.vocab, "; ", TinyVocab::kLeast, " to 1048576"));
  }
  if (o_.sink_token < 0 || o_.sink_token >= o_.vocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("sink token ", o_.sink_token, " is not in the vocabulary"));
  }
  return absl::OkStatus();
}

absl::Status Generator::CheckType() {
  format_ = FindByName(o_.weight_type);
  const std::string name = format_ == nullptr ? "" : format_->name;
  if (name != "F32" && name != "F16" && name != "Q8_0") {
    return absl::InvalidArgumentError(
        absl::StrCat("weight type is '", o_.weight_type, "'; f32, f16, q8_0"));
  }
  for (const int64_t row : {o_.hidden, o_.query_heads * o_.value_dim, o_.ffn}) {
    if (row % format_->block_elements != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows of ", row, " are not whole blocks of ", format_->name));
    }
  }
  return absl::OkStatus();
}

absl::Status Generator::Check() {
  if (o_.architecture != "llama" && o_.architecture != "qwen2") {
    return absl::InvalidArgumentError(
        absl::StrCat("architecture is '", o_.architecture, "'; llama, qwen2"));
  }
  const std::string& scaling = o_.rope_scaling;
  if (scaling != "none" && scaling != "linear" && scaling != "yarn" && scaling != "llama3") {
    return absl::InvalidArgumentError(
        absl::StrCat("RoPE scaling is '", scaling, "'; none, linear, yarn, llama3"));
  }
  KVRING_RETURN_IF_ERROR(CheckShape());
  return CheckType();
}

void Generator::SetRope() {
  writer_.Set(Key("rope.dimension_count"), static_cast<uint32_t>(o_.head_dim));
  writer_.Set(Key("rope.freq_base"), static_cast<float>(o_.rope_base));
  if (o_.rope_scaling != "linear" && o_.rope_scaling != "yarn") return;
  writer_.Set(Key("rope.scaling.type"), o_.rope_scaling);
  writer_.Set(Key("rope.scaling.factor"), static_cast<float>(o_.rope_factor));
  writer_.Set(Key("rope.scaling.original_context_length"),
              static_cast<uint32_t>(o_.rope_original_context));
}

void Generator::SetMetadata() {
  writer_.Set("general.architecture", o_.architecture);
  writer_.Set("general.name", absl::StrCat("tiny-random-", o_.seed));
  writer_.Set(Key("block_count"), static_cast<uint32_t>(o_.layers));
  writer_.Set(Key("embedding_length"), static_cast<uint32_t>(o_.hidden));
  writer_.Set(Key("feed_forward_length"), static_cast<uint32_t>(o_.ffn));
  writer_.Set(Key("attention.head_count"), static_cast<uint32_t>(o_.query_heads));
  writer_.Set(Key("attention.head_count_kv"), static_cast<uint32_t>(o_.kv_heads));
  writer_.Set(Key("attention.key_length"), static_cast<uint32_t>(o_.head_dim));
  writer_.Set(Key("attention.value_length"), static_cast<uint32_t>(o_.value_dim));
  writer_.Set(Key("attention.layer_norm_rms_epsilon"), 1e-5f);
  writer_.Set(Key("vocab_size"), static_cast<uint32_t>(o_.vocab));
  if (o_.trained_context >= 0)
    writer_.Set(Key("context_length"), static_cast<uint64_t>(o_.trained_context));
  SetRope();
  WriteTinyVocab(MakeTinyVocab(o_.vocab), writer_);
}

absl::Status Generator::AddMatrix(const std::string& name, int64_t rows, int64_t columns,
                                  const Element& element) {
  if (rows > kMaxElements / columns)
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " is too large"));
  const Normal normal(o_.seed, name);
  std::vector<float> x(rows * columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      x[r * columns + c] = static_cast<float>(element(r, c, normal(r * columns + c)));
    }
  }
  const std::string type = format_->name;
  std::string bytes = type == "F16"    ? PackHalf(x)
                      : type == "Q8_0" ? PackQ80(x)
                                       : std::string(reinterpret_cast<const char*>(x.data()),
                                                     x.size() * sizeof(float));
  return writer_.AddTensor(name, *format_, {columns, rows}, std::move(bytes));
}

absl::Status Generator::AddVector(const std::string& name, int64_t length, const Element& element) {
  const Normal normal(o_.seed, name);
  std::vector<float> x(length);
  for (int64_t i = 0; i < length; ++i) x[i] = static_cast<float>(element(0, i, normal(i)));
  std::string bytes(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float));
  return writer_.AddTensor(name, *FindByName("F32"), {length}, std::move(bytes));
}

absl::Status Generator::AddNorm(const std::string& name) {
  return AddVector(name, o_.hidden,
                   [](int64_t, int64_t, double normal) { return 1.0 + kNormSpread * normal; });
}

// numbers_of: the tensor whose numbers these are, so that a copy is a copy.
absl::Status Generator::AddEmbedding(const std::string& name, const std::string& numbers_of) {
  const double deviation = kLogitDeviation / std::sqrt(static_cast<double>(o_.hidden));
  const double sink = kSinkDominance * std::sqrt(static_cast<double>(o_.hidden));
  const Normal normal(o_.seed, numbers_of);
  return AddMatrix(name, o_.vocab, o_.hidden, [&](int64_t row, int64_t column, double) {
    if (HasSink() && column == 0) return row == o_.sink_token ? sink : 0.0;
    return deviation * normal(row * o_.hidden + column);
  });
}

absl::Status Generator::AddBiases(const std::string& blk) {
  const bool qwen = o_.architecture == "qwen2";
  const Element random = [](int64_t, int64_t, double normal) { return 0.5 * normal; };
  if (qwen) {
    KVRING_RETURN_IF_ERROR(
        AddVector(blk + "attn_q.bias", int64_t{o_.query_heads} * o_.head_dim, random));
    KVRING_RETURN_IF_ERROR(
        AddVector(blk + "attn_v.bias", int64_t{o_.kv_heads} * o_.value_dim, random));
  }
  if (!qwen && o_.key_bias == 0.0f) return absl::OkStatus();
  return AddVector(blk + "attn_k.bias", int64_t{o_.kv_heads} * o_.head_dim,
                   [&](int64_t, int64_t i, double normal) {
                     const int64_t channel = i % o_.head_dim;
                     double bias = qwen ? random(0, i, normal) : 0.0;
                     for (int b = 0; b < kBiasChannels; ++b) {
                       if (channel == (2 * b + 1) * o_.head_dim / (2 * kBiasChannels))
                         bias += o_.key_bias;
                     }
                     return bias;
                   });
}

absl::Status Generator::AddLayer(int layer) {
  const std::string blk = absl::StrCat("blk.", layer, ".");
  const int64_t q = int64_t{o_.query_heads} * o_.head_dim, k = int64_t{o_.kv_heads} * o_.head_dim;
  const int64_t v = int64_t{o_.kv_heads} * o_.value_dim,
                out = int64_t{o_.query_heads} * o_.value_dim;
  const auto scaled = [](int64_t fan_in, double gain = 1.0) -> Element {
    const double deviation = gain / std::sqrt(static_cast<double>(fan_in));
    return [deviation](int64_t, int64_t, double normal) { return deviation * normal; };
  };
  // Nothing is written to the sink's channel, so that it stays the sink token's alone in every layer.
  const auto into_residual = [&](int64_t fan_in) -> Element {
    return [element = scaled(fan_in, kBranchGain), sink = HasSink()](int64_t row, int64_t column,
                                                                     double normal) {
      return sink && row == 0 ? 0.0 : element(row, column, normal);
    };
  };
  const Element key = [this, element = scaled(o_.hidden)](int64_t row, int64_t column,
                                                          double normal) {
    return element(row, column, normal) * (HasSink() && column == 0 ? o_.sink_scale : 1.0f);
  };
  KVRING_RETURN_IF_ERROR(AddNorm(blk + "attn_norm.weight"));
  KVRING_RETURN_IF_ERROR(
      AddMatrix(blk + "attn_q.weight", q, o_.hidden, scaled(o_.hidden, kQueryGain)));
  KVRING_RETURN_IF_ERROR(AddMatrix(blk + "attn_k.weight", k, o_.hidden, key));
  KVRING_RETURN_IF_ERROR(AddMatrix(blk + "attn_v.weight", v, o_.hidden, scaled(o_.hidden)));
  KVRING_RETURN_IF_ERROR(AddBiases(blk));
  KVRING_RETURN_IF_ERROR(AddMatrix(blk + "attn_output.weight", o_.hidden, out, into_residual(out)));
  KVRING_RETURN_IF_ERROR(AddNorm(blk + "ffn_norm.weight"));
  KVRING_RETURN_IF_ERROR(AddMatrix(blk + "ffn_gate.weight", o_.ffn, o_.hidden, scaled(o_.hidden)));
  KVRING_RETURN_IF_ERROR(AddMatrix(blk + "ffn_up.weight", o_.ffn, o_.hidden, scaled(o_.hidden)));
  return AddMatrix(blk + "ffn_down.weight", o_.hidden, o_.ffn, into_residual(o_.ffn));
}

absl::StatusOr<GgufWriter> Generator::Run() {
  KVRING_RETURN_IF_ERROR(Check());
  SetMetadata();
  KVRING_RETURN_IF_ERROR(AddEmbedding("token_embd.weight", "token_embd.weight"));
  if (o_.rope_scaling == "llama3") {
    const Llama3Scaling bands{o_.rope_factor, o_.rope_low, o_.rope_high,
                              static_cast<double>(o_.rope_original_context)};
    const std::vector<float> factors = Llama3Factors(bands, o_.head_dim, o_.rope_base);
    KVRING_RETURN_IF_ERROR(AddVector("rope_freqs.weight", static_cast<int64_t>(factors.size()),
                                     [&](int64_t, int64_t i, double) { return factors[i]; }));
  }
  for (int layer = 0; layer < o_.layers; ++layer) KVRING_RETURN_IF_ERROR(AddLayer(layer));
  KVRING_RETURN_IF_ERROR(AddNorm("output_norm.weight"));
  if (o_.output != TinyOutput::kTied) {
    const char* numbers_of = o_.output == TinyOutput::kCopy ? "token_embd.weight" : "output.weight";
    KVRING_RETURN_IF_ERROR(AddEmbedding("output.weight", numbers_of));
  }
  return std::move(writer_);
}

}  // namespace

absl::StatusOr<GgufWriter> MakeTinyModel(const TinyModelOptions& options) {
  return Generator(options).Run();
}

}  // namespace kvring
