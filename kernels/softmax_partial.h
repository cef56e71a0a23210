// SPDX-License-Identifier: Apache-2.0
// Attention over any set of keys, as a value: partial attention is a monoid.
//
// For each row (one query of one head): m is the largest scaled logit seen, in the base-2 domain (log2 e is folded into
// the query, so weights are exp2(s - m)); l is the sum of weights; o the weighted sum of values, NOT divided by l. All
// fp32. A row is empty when l == 0; the value of m never decides. Merge with an empty row changes no bit.
// o stays in the domain of the value codec until Codec::FinishOutput, after the last merge.
#pragma once

#include <cstdint>

namespace kvring {

struct SoftmaxPartial {
  float* m = nullptr;  // [rows]
  float* l = nullptr;  // [rows]
  float* o = nullptr;  // [rows][dv]
  int64_t rows = 0;
  int64_t dv = 0;

  // The same rows, from `first` on.
  SoftmaxPartial Slice(int64_t first, int64_t count) const {
    return {m + first, l + first, o + first * dv, count, dv};
  }
};

// Floats that `rows` partial rows take: m, l and o.
inline int64_t PartialFloats(int64_t rows, int64_t dv) { return rows * (dv + 2); }

// A view over PartialFloats(rows, dv) floats of the caller's: m, then l, then o.
inline SoftmaxPartial PartialAt(float* storage, int64_t rows, int64_t dv) {
  return {storage, storage + rows, storage + 2 * rows, rows, dv};
}

void MakeEmpty(const SoftmaxPartial& partial);

// into = into (+) from, row by row. Shapes are equal. Not commutative in bits: the order belongs to the caller.
void Merge(const SoftmaxPartial& into, const SoftmaxPartial& from);

// out[row] = o / l, [rows][dv]. Returns false when a row is empty or not finite (that row is then zeros): a real query
// always sees itself, so the caller treats it as a fault.
bool Finalize(const SoftmaxPartial& partial, float* out);

// Index of the first row whose m or l is NaN or infinite (an empty row's m may be -inf), or -1.
int64_t FindNonFinite(const SoftmaxPartial& partial);

}  // namespace kvring
