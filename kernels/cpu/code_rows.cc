// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/code_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/code_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/code_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

#if KVRING_CODE_TABLES
bool HaveTables() { return true; }

void DecodeCodesImpl(const CodeRows& rows, float* out) {
  const CodeNumbers numbers(rows);
  for (int64_t r = 0; r < rows.rows; ++r) DecodeRow(rows, numbers, r, out + r * rows.lanes);
}
#else
bool HaveTables() { return false; }
void DecodeCodesImpl(const CodeRows&, float*) {}
#endif

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(HaveTables);
HWY_EXPORT(DecodeCodesImpl);

bool HaveCodeTables() { return HWY_DYNAMIC_DISPATCH(HaveTables)(); }

void DecodeCodes(const CodeRows& rows, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeCodesImpl)(rows, out);
}

}  // namespace kvring
#endif
