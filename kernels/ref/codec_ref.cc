// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/codec_ref.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/ref/trellis_ref.h"

namespace kvring {
namespace {

uint64_t SignBits(uint64_t i) {  // splitmix64(seed + i)
  uint64_t x = 0x6b7672696e670001u + i + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// rows begin..begin+size of m become Sylvester(size) / sqrt(size) times themselves.
void MixRows(int begin, int size, int dim, std::vector<double>& m) {
  const std::vector<double> old = m;
  for (int i = 0; i < size; ++i) {
    for (int c = 0; c < dim; ++c) {
      double sum = 0.0;
      for (int j = 0; j < size; ++j) {
        const double sign = std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1.0 : -1.0;
        sum += sign * old[(begin + j) * dim + c];
      }
      m[(begin + i) * dim + c] = sum / std::sqrt(double(size));
    }
  }
}

// The code of (row, lane), bit by bit.
int ReadCode(const uint8_t* words, int64_t lanes, int bits, int64_t row, int64_t lane) {
  int code = 0;
  for (int b = 0; b < bits; ++b) {
    const int64_t bit = row * bits + b;
    const uint8_t byte = words[(bit / 32 * lanes + lane) * 4 + bit % 32 / 8];
    code |= (byte >> (bit % 8) & 1) << b;
  }
  return code;
}

int64_t BytesOfWords(int64_t rows, int64_t lanes, int bits) {
  return (rows * bits + 31) / 32 * lanes * 4;
}

double LevelRef(int bits, int code) {
  static const int kTwo[] = {38, 127};
  static const int kThree[] = {14, 45, 79, 127};
  static const int kFour[] = {6, 18, 31, 44, 58, 75, 96, 127};
  if (bits == 8) return code < 128 ? code : code - 256;
  const int half = 1 << (bits - 1);
  const int* const table = bits == 2 ? kTwo : bits == 3 ? kThree : kFour;
  const double largest = bits == 2 ? 1.51041756 : bits == 3 ? 2.15194571 : 2.73258957;
  const int level = code >= half ? table[code - half] : -table[half - 1 - code];
  return level * largest / 127.0;
}

double ScaleRef(uint8_t e) { return e == 0 ? 0.0 : std::exp2((e - 112) / 8.0); }

double HalfAt(const uint8_t* at) {
  Half h;
  std::memcpy(&h, at, 2);
  return HalfToFloat(h);
}

void RotateRef(const RopeTable& rope, int64_t position, double* x) {
  for (int p = 0; p < rope.planes(); ++p) {
    const double angle = static_cast<double>(position) * rope.inv_freq[p];
    const double c = std::cos(angle) * rope.attention_scale,
                 s = std::sin(angle) * rope.attention_scale;
    const double a = x[rope.First(p)], b = x[rope.Second(p)];
    x[rope.First(p)] = a * c - b * s;
    x[rope.Second(p)] = a * s + b * c;
  }
}

std::vector<double> Apply(const std::vector<double>& matrix, const std::vector<double>& x) {
  const size_t n = x.size();
  std::vector<double> y(n, 0.0);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) y[i] += matrix[i * n + j] * x[j];
  }
  return y;
}

// Codes of one side of a rot page: where they are and how many bytes they take.
struct RotSideRef {
  const RotPageRef& form;
  int dim;
  bool keys;

  std::vector<uint8_t> Each() const { return std::vector<uint8_t>(dim, form.bits); }
  int GroupRows() const { return form.grouped ? 64 : dim; }
  int64_t CodeBytes() const {
    if (form.trellis) return TrellisBytesRef(Each(), GroupRows()) * form.block_tokens;
    return keys ? BytesOfWords(dim, form.block_tokens, form.bits)
                : BytesOfWords(form.block_tokens, dim, form.bits);
  }
  int64_t Bytes() const {
    return CodeBytes() + (dim + GroupRows() - 1) / GroupRows() * form.block_tokens;
  }
  // The number of coefficient i of slot t at scale 1.
  double Number(const uint8_t* part, int t, int i) const {
    if (form.trellis) {
      const uint8_t* const stream = part + t * TrellisBytesRef(Each(), GroupRows());
      return TrellisNumberRef(Each(), GroupRows(), stream, i);
    }
    return LevelRef(form.bits, keys ? ReadCode(part, form.block_tokens, form.bits, i, t)
                                    : ReadCode(part, dim, form.bits, t, i));
  }
};

int64_t RotKeyBytes(const RotPageRef& form) { return RotSideRef{form, form.dk, true}.Bytes(); }

// mu or a sink row in the query domain.
std::vector<double> KeyShift(const RotPageRef& form, const PageView& page, int t,
                             const std::vector<double>& rotation) {
  std::vector<double> x(form.dk, 0.0);
  if (t < page.sinks) {
    for (int i = 0; i < form.dk; ++i) x[i] = HalfToFloat(page.sink_k[t * page.sink_k_stride + i]);
  } else if (form.mean != nullptr) {
    for (int i = 0; i < form.dk; ++i) x[i] = form.mean[i];
    RotateRef(*form.rope, page.begin + t, x.data());
  }
  for (int i = 0; i < form.dk; ++i) x[i] *= form.weights == nullptr ? 1.0 : form.weights[i];
  return Apply(rotation, x);
}

int UnsignedAt(const uint8_t* at) { return at[0] | at[1] << 8; }

int64_t NuqWordBytes(const NuqPageRef& form, const NuqSideRef& side) {
  return side.by_channel ? BytesOfWords(side.dim, form.block_tokens, form.bits)
                         : BytesOfWords(form.block_tokens, side.dim, form.bits);
}

// Bytes of a part before its slots: codes, and the scales and offsets that lie with this head.
int64_t NuqSlotsAt(const NuqPageRef& form, const NuqSideRef& side, int head) {
  const bool scales = !side.by_channel && (!form.token || head == 0);
  return NuqWordBytes(form, side) + (scales ? 4 * form.block_tokens : 0);
}

int64_t NuqPartBytes(const NuqPageRef& form, const NuqSideRef& side, int head) {
  return NuqSlotsAt(form, side, head) + 4 * (head == 0 ? side.shared_slots : side.slots);
}

// The numbers of all codes, [tokens][dim]. part, shared: of this side.
std::vector<double> NuqCodesRef(const NuqPageRef& form, const NuqSideRef& side, const uint8_t* part,
                                const uint8_t* shared, int tokens) {
  const uint8_t* const scales = (form.token ? shared : part) + NuqWordBytes(form, side);
  std::vector<double> x;
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < side.dim; ++i) {
      const int code = side.by_channel ? ReadCode(part, form.block_tokens, form.bits, i, t)
                                       : ReadCode(part, side.dim, form.bits, t, i);
      const double z = side.by_channel ? (double{side.hi[i]} + side.lo[i]) / 2
                                       : HalfAt(scales + 2 * (form.block_tokens + t));
      const double s =
          side.by_channel ? (double{side.hi[i]} - side.lo[i]) / 2 : HalfAt(scales + 2 * t);
      x.push_back(z + s * side.numbers[code]);
    }
  }
  return x;
}

// Residuals of the fixed slots behind a part's codes and scales.
void AddSlotsRef(const NuqSideRef& side, const uint8_t* slots, std::vector<double>& x) {
  for (int i = 0; i < side.slots; ++i) {
    const size_t index = UnsignedAt(slots + 2 * i);
    if (index < x.size()) x[index] += HalfAt(slots + 2 * (side.slots + i));
  }
}

// Residuals of the lists: counts of keys, of values, then all entries.
void AddListsRef(const NuqPageRef& form, const NuqSideRef& side, bool values, const uint8_t* lists,
                 int tokens, std::vector<double>& x) {
  const uint8_t* entry = lists + 4 * form.block_tokens;
  for (int t = form.unlisted; t < tokens; ++t) {
    for (const bool of_values : {false, true}) {
      const int count = UnsignedAt(lists + 2 * ((of_values ? form.block_tokens : 0) + t));
      for (int i = 0; i < count; ++i, entry += 4) {
        const int channel = UnsignedAt(entry) - form.head * side.dim;
        if (of_values == values && channel >= 0 && channel < side.dim)
          x[t * side.dim + channel] += HalfAt(entry + 2);
      }
    }
  }
}

// One side as stored, sinks aside.
std::vector<double> NuqSideOf(const NuqPageRef& form, bool values, const PageView& page) {
  const NuqSideRef& side = values ? form.v : form.k;
  const uint8_t* const part = page.packed + (values ? NuqPartBytes(form, form.k, form.head) : 0);
  const uint8_t* const shared =
      page.shared == nullptr ? nullptr : page.shared + (values ? NuqPartBytes(form, form.k, 0) : 0);
  std::vector<double> x = NuqCodesRef(form, side, part, shared, page.tokens);
  if (form.listed) {
    const uint8_t* const lists =
        page.shared + NuqPartBytes(form, form.k, 0) + NuqPartBytes(form, form.v, 0);
    AddListsRef(form, side, values, lists, page.tokens, x);
  } else {
    AddSlotsRef(side, part + NuqSlotsAt(form, side, form.head), x);
  }
  return x;
}

}  // namespace

std::vector<double> RotationMatrix(int dim) {
  std::vector<double> m(static_cast<size_t>(dim) * dim, 0.0);
  for (int i = 0; i < dim; ++i) m[i * dim + i] = SignBits(i) >> 63 ? -1.0 : 1.0;
  const int factor = dim & -dim;
  if (factor >= 16 || factor == dim) {
    for (int begin = 0; begin < dim; begin += factor) MixRows(begin, factor, dim, m);
  } else {
    int size = 1;
    while (size * 2 <= dim) size *= 2;
    MixRows(0, size, dim, m);
    MixRows(dim - size, size, dim, m);
  }
  return m;
}

std::vector<double> RotKeysRef(const RotPageRef& form, const PageView& page) {
  const std::vector<double> rotation = RotationMatrix(form.dk);
  const RotSideRef side{form, form.dk, true};
  const uint8_t* const e = page.packed + side.CodeBytes();
  std::vector<double> keys;
  for (int t = 0; t < page.tokens; ++t) {
    std::vector<double> key = KeyShift(form, page, t, rotation);
    for (int i = 0; t >= page.sinks && i < form.dk; ++i) {
      const int group = form.grouped ? i / 64 : 0;
      key[i] += ScaleRef(e[group * form.block_tokens + t]) * side.Number(page.packed, t, i);
    }
    keys.insert(keys.end(), key.begin(), key.end());
  }
  return keys;
}

std::vector<double> RotValuesRef(const RotPageRef& form, const PageView& page) {
  const RotSideRef side{form, form.dv, false};
  const uint8_t* const part = page.packed + RotKeyBytes(form);
  const uint8_t* const e = part + side.CodeBytes();
  std::vector<double> values;
  for (int t = 0; t < page.tokens; ++t) {
    for (int i = 0; i < form.dv; ++i) {
      const int group = form.grouped ? i / 64 : 0;
      const double scale = ScaleRef(e[group * form.block_tokens + t]);
      values.push_back(t < page.sinks ? HalfToFloat(page.sink_v[t * page.sink_v_stride + i])
                                      : scale * side.Number(part, t, i));
    }
  }
  return values;
}

RotCodesRef RotPageCodes(const RotPageRef& form, const PageView& page) {
  RotCodesRef codes;
  const int block = form.block_tokens;
  const uint8_t* const values = page.packed + RotKeyBytes(form);
  for (int t = 0; t < block; ++t) {
    for (int i = 0; i < form.dk; ++i)
      codes.k.push_back(ReadCode(page.packed, block, form.bits, i, t));
    for (int i = 0; i < form.dv; ++i) codes.v.push_back(ReadCode(values, form.dv, form.bits, t, i));
    codes.k_scale.push_back(page.packed[BytesOfWords(form.dk, block, form.bits) + t]);
    codes.v_scale.push_back(values[BytesOfWords(block, form.dv, form.bits) + t]);
  }
  return codes;
}

std::vector<double> GroupedKeysRef(const GroupedPageRef& form, const PageView& page) {
  const uint8_t* const params = page.packed + BytesOfWords(form.dk, form.block_tokens, form.bits);
  std::vector<double> keys;
  for (int t = 0; t < page.tokens; ++t) {
    std::vector<double> key(form.dk);
    for (int i = 0; i < form.dk; ++i) {
      const int code = ReadCode(page.packed, form.block_tokens, form.bits, i, t);
      key[i] = t < page.sinks ? HalfToFloat(page.sink_k[t * page.sink_k_stride + i])
                              : HalfAt(params + 2 * (form.dk + i)) +
                                    HalfAt(params + 2 * i) * form.numbers[code];
    }
    if (form.rope != nullptr) RotateRef(*form.rope, page.begin + t, key.data());
    keys.insert(keys.end(), key.begin(), key.end());
  }
  return keys;
}

std::vector<double> GroupedValuesRef(const GroupedPageRef& form, const PageView& page) {
  const uint8_t* const part =
      page.packed + BytesOfWords(form.dk, form.block_tokens, form.bits) + 4 * int64_t{form.dk};
  const uint8_t* const params = part + BytesOfWords(form.block_tokens, form.dv, form.bits);
  std::vector<double> values;
  for (int t = 0; t < page.tokens; ++t) {
    const double scale = HalfAt(params + 2 * t),
                 offset = HalfAt(params + 2 * (form.block_tokens + t));
    for (int i = 0; i < form.dv; ++i) {
      const int code = ReadCode(part, form.dv, form.bits, t, i);
      values.push_back(t < page.sinks ? HalfToFloat(page.sink_v[t * page.sink_v_stride + i])
                                      : offset + scale * form.numbers[code]);
    }
  }
  return values;
}

std::vector<double> NuqKeysRef(const NuqPageRef& form, const PageView& page) {
  std::vector<double> keys = NuqSideOf(form, false, page);
  const int dim = form.k.dim;
  for (int t = 0; t < page.tokens; ++t) {
    for (int i = 0; t < page.sinks && i < dim; ++i)
      keys[t * dim + i] = HalfToFloat(page.sink_k[t * page.sink_k_stride + i]);
    if (form.rope != nullptr) RotateRef(*form.rope, page.begin + t, &keys[t * dim]);
  }
  return keys;
}

std::vector<double> NuqValuesRef(const NuqPageRef& form, const PageView& page) {
  std::vector<double> values = NuqSideOf(form, true, page);
  const int dim = form.v.dim;
  for (int t = 0; t < page.tokens && t < page.sinks; ++t) {
    for (int i = 0; i < dim; ++i)
      values[t * dim + i] = HalfToFloat(page.sink_v[t * page.sink_v_stride + i]);
  }
  return values;
}

}  // namespace kvring
