// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/matmul_shape.h"

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/half.h"

namespace kvring {
namespace {

// Rows of fewer than 64 are run as 64: for libraries whose small kernels sum in another order.
class PaddedShape : public MatmulShape {
 public:
  PaddedShape(std::shared_ptr<const MatmulShape> inner, const MatmulKey& key)
      : inner_(std::move(inner)), key_(key) {}
  int64_t packed_bytes() const override { return inner_->packed_bytes(); }
  bool Pack(const void* w, uint8_t* packed) const override { return inner_->Pack(w, packed); }

  bool Run(const void* x, int64_t rows, const uint8_t* packed, void* y) const override {
    if (rows == kMatmulRows) return inner_->Run(x, rows, packed, y);
    const int64_t row_bytes = key_.k * MatmulElementBytes(key_.math);
    thread_local std::vector<uint8_t> wide_x, wide_y;
    wide_x.assign(static_cast<size_t>(kMatmulRows * row_bytes), 0);
    wide_y.resize(static_cast<size_t>(kMatmulRows * key_.n * 4));
    std::memcpy(wide_x.data(), x, static_cast<size_t>(rows * row_bytes));
    if (!inner_->Run(wide_x.data(), kMatmulRows, packed, wide_y.data())) return false;
    std::memcpy(y, wide_y.data(), static_cast<size_t>(rows * key_.n * 4));
    return true;
  }

 private:
  std::shared_ptr<const MatmulShape> inner_;
  MatmulKey key_;
};

// Numbers of many magnitudes from a linear congruential generator: rounding in another order would show.
void FillElements(LinearMath math, uint64_t seed, int64_t n, std::vector<uint8_t>* out) {
  const int64_t size = MatmulElementBytes(math);
  out->resize(static_cast<size_t>(n * size));
  uint64_t state = seed;
  for (int64_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<int32_t>(state >> 33) - (1 << 30);
    const float value = static_cast<float>(bits) * 0x1p-30f;
    if (math == LinearMath::kF32) {
      std::memcpy(out->data() + i * size, &value, sizeof(value));
    } else if (math == LinearMath::kBf16) {
      const BFloat16 half = FloatToBFloat16(value);
      std::memcpy(out->data() + i * size, &half, sizeof(half));
    } else {  // half of them at the ends of the range, where 16-bit sums saturate
      const int wide = static_cast<int>(state >> 40) % 255 - 127;
      (*out)[i] = static_cast<uint8_t>(
          static_cast<int8_t>((state >> 62) & 1 ? (wide < 0 ? -127 : 127) : wide));
    }
  }
}

bool SumsAreExact(const MatmulKey& key, const std::vector<uint8_t>& w,
                  const std::vector<uint8_t>& x, const std::vector<int32_t>& y) {
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t o = 0; o < key.n; ++o) {
      int32_t sum = 0;
      for (int64_t i = 0; i < key.k; ++i) {
        sum += static_cast<int8_t>(x[r * key.k + i]) * static_cast<int8_t>(w[o * key.k + i]);
      }
      if (sum != y[r * key.n + o]) return false;
    }
  }
  return true;
}

}  // namespace

int64_t MatmulElementBytes(LinearMath math) {
  return math == LinearMath::kF32 ? 4 : math == LinearMath::kBf16 ? 2 : 1;
}

bool HoldsRowLaw(const MatmulShape& shape, const MatmulKey& key) {
  std::vector<uint8_t> w, x;
  FillElements(key.math, 1, key.n * key.k, &w);
  FillElements(key.math, 2, kMatmulRows * key.k, &x);
  AlignedBytes packed = AllocateAligned(shape.packed_bytes());
  std::vector<int32_t> want(static_cast<size_t>(kMatmulRows * key.n)), got(want.size());
  if (!shape.Pack(w.data(), packed.get()) ||
      !shape.Run(x.data(), kMatmulRows, packed.get(), want.data()))
    return false;
  if (key.math == LinearMath::kInt8 && !SumsAreExact(key, w, x, want)) return false;
  for (int64_t rows : {1, 2, 3, 8, 37, 63}) {
    for (int64_t first : {int64_t{0}, kMatmulRows - rows}) {
      const uint8_t* from = x.data() + first * key.k * MatmulElementBytes(key.math);
      if (!shape.Run(from, rows, packed.get(), got.data())) return false;
      const int32_t* expected = want.data() + first * key.n;
      if (std::memcmp(got.data(), expected, static_cast<size_t>(rows * key.n * 4)) != 0)
        return false;
    }
  }
  return true;
}

std::shared_ptr<const MatmulShape> MakePaddedShape(std::shared_ptr<const MatmulShape> inner,
                                                   const MatmulKey& key) {
  return inner == nullptr ? nullptr : std::make_shared<PaddedShape>(std::move(inner), key);
}

std::shared_ptr<const MatmulShape> GetMatmulShape(const MatmulKey& key, std::string* error) {
  static std::mutex mutex;
  static std::map<MatmulKey, std::shared_ptr<const MatmulShape>> shapes;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = shapes.find(key);
  if (found != shapes.end()) return found->second;
  // f32 is ours alone: at 64 rows it is as fast as oneDNN (105 against 103 GFLOP/s on a Zen 4 core of 118), at one row
  // faster (45 against 28), and its bits are the same on every CPU with fused multiply-add, where oneDNN's are not.
  const bool f32 = key.math == LinearMath::kF32;
  const auto best = f32 ? MakePanelShape(key) : MakeOnednnShape(key);
  for (const auto& candidate : {best, MakePaddedShape(best, key)}) {
    if (candidate == nullptr || !HoldsRowLaw(*candidate, key)) continue;
    return shapes[key] = candidate;
  }
  *error =
      std::string("no ") + LinearMathName(key.math) +
      " matrix product on this CPU gives a row the same bits in every company; use another --math";
  return nullptr;
}

}  // namespace kvring
