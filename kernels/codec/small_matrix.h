// SPDX-License-Identifier: Apache-2.0
// Products with one small dense matrix (a head's basis): each output is a chain of separate products and sums over the
// inputs in ascending order, so a row or column gives the same bits alone, in company, and on every instruction set.
#pragma once

#include <cstdint>

namespace kvring {

// y [rows][out] = x [rows][in] * m [in][out]. y is not x.
void RowsTimesMatrix(const float* x, int64_t rows, const float* m, int in, int out, float* y);

// y [out][lanes] = m^T * x, x [in][lanes], one vector a column: the same bits as RowsTimesMatrix. lanes: a multiple of 16.
void ColumnsTimesMatrix(const float* x, int64_t lanes, const float* m, int in, int out, float* y);

}  // namespace kvring
