// SPDX-License-Identifier: Apache-2.0
// Pages whose codes lie in classes of unlike widths.
#define HWY_WANT_AVX3_DL  // Highway builds its newest x86 target on demand only

#include <algorithm>

#include "kernels/cpu/attend_packed.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_classes.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/class_dot-inl.h"
#include "kernels/cpu/packed_page-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace {

// Rows of a page by fours, then the rest: call.template operator()<rows>(first row).
template <class Call>
HWY_INLINE void ByFours(int64_t rows, const Call& call) {
  int64_t r = 0;
  for (; rows - r >= 4; r += 4) call.template operator()<4>(r);
  if (rows - r == 3) call.template operator()<3>(r);
  if (rows - r == 2) call.template operator()<2>(r);
  if (rows - r == 1) call.template operator()<1>(r);
}

// Codes of classes (packed_page-inl.h); kOne: of a single scale a side, the common case, whose loops are then none.
template <bool kOne>
struct ClassedCodes {
  static constexpr int kMaxGroups = kOne ? 1 : kPackedMaxDim / kPackedGainRows;
  static constexpr int kOrder = 4;
  static constexpr bool kSteps = true;
  static constexpr int TermScale(int term) { return PackedForm::TermScale(term); }
  int terms() const { return kOne ? 2 : room.terms; }
  int groups() const { return kOne ? 1 : room.groups; }

  ClassedCodes(const PackedForm& form, const PackedRoom& room, const PackedQueries& queries,
               bool fused)
      : form(form), room(room), value_step(queries.value_step.data()), fused(fused) {}

  float KeyStep(const PackedQueries& q, int64_t row, int term) const {
    return q.q_scale[row * q.steps + PackedForm::TermStep(term)];
  }

  ClassArgs Side(const PackedPage& from, bool keys) const {
    ClassArgs t;
    t.bits = keys ? form.k_bits : form.v_bits;
    t.end = (keys ? form.dk : form.dv) / kPackedClass;
    t.planes = keys ? from.k_words : from.v_words;
    t.next = from.next;
    t.levels = form.levels;
    return t;
  }

  void Unpack(const PackedPage& page) const {
    UnpackKeyClasses(Side(page, true), room.keys);
    UnpackValueClasses(Side(page, false), form.dv, room.values);
  }

  void Keys(const PackedPage& of, const PackedQueries& q, int64_t row, int64_t count,
            int32_t* out) const {
    const uint32_t* const a = reinterpret_cast<const uint32_t*>(q.q.data() + row * q.dk);
    ClassArgs t = Side(of, true);
    for (int term = 0; term < terms(); ++term, out += kPackedBlock) {
      t.begin = form.TermBegin(term), t.end = form.TermEnd(term);
      const int32_t* const q_sum = q.q_sum.data() + term * q.rows + row;
      KeyTerm(t, a, q.dk / 4, q_sum, count, out);
      for (int c = t.begin; c < t.end; ++c) t.planes += PlaneBytes(form.k_bits[c]);
    }
  }

  void KeyTerm(const ClassArgs& t, const uint32_t* a, int64_t lda, const int32_t* q_sum,
               int64_t count, int32_t* out) const {
    const int64_t ldo = int64_t{terms()} * kPackedBlock;
#if KVRING_VNNI
    if (fused) {
      return ByFours(count, [&]<int R>(int64_t r) HWY_ATTR {
        ClassKeyDot<R>(t, a + r * lda, lda, q_sum + r, out + r * ldo, ldo);
      });
    }
#endif
    DotArgs dot;
    dot.words = room.keys + t.begin * 2 * kPackedBlock;
    dot.stride = kPackedBlock;
    dot.groups = 2 * (t.end - t.begin);
    dot.a = a + 2 * t.begin;
    dot.lda = lda;
    dot.q_sum = q_sum;
    dot.out = out;
    dot.ldo = ldo;
    Dot<DotKind::kQuery, kReady>(dot, kPackedBlock, count);
  }

  void Values(const PackedPage& page, int64_t count) const {
    const int64_t classes = form.dv / kPackedClass;
    ClassArgs t = Side(page, false);
#if KVRING_VNNI
    if (fused) {
      for (int64_t i = 0; i < count * groups(); ++i)
        ClassPairs(room.weights + i * kPackedBlock, room.pairs + i * 2 * kPackedBlock);
    }
#endif
    for (int g = 0; g < groups(); ++g) {
      t.begin = g * kPackedGainRows / kPackedClass;
      t.end = static_cast<int>(g + 1 == groups() ? classes : t.begin + 8);
      ValueGroup(t, g, count);
      for (int c = t.begin; c < t.end; ++c) t.planes += PlaneBytes(form.v_bits[c]);
    }
  }

  // Classes without bits behind the last group belong to it.
  void ValueGroup(const ClassArgs& t, int group, int64_t count) const {
#if KVRING_VNNI
    if (fused) {
      const int64_t stride = int64_t{groups()} * 2 * kPackedBlock;
      return ByFours(count, [&]<int R>(int64_t r) HWY_ATTR {
        ClassValueDot<R>(t, room.pairs + r * stride + group * 2 * kPackedBlock, stride,
                         room.sums + r * form.dv, form.dv);
      });
    }
#endif
    DotArgs dot;
    dot.words = room.values + t.begin * kPackedClass;
    dot.stride = form.dv;
    dot.groups = kPackedBlock / 4;
    dot.lda = int64_t{groups()} * kPackedBlock / 4;
    dot.a = reinterpret_cast<const uint32_t*>(room.weights) + group * kPackedBlock / 4;
    dot.out = room.sums + t.begin * kPackedClass;
    dot.ldo = form.dv;
    Dot<DotKind::kWeight, kReady>(dot, int64_t{t.end - t.begin} * kPackedClass, count);
  }

  const PackedForm& form;
  const PackedRoom& room;
  const float* value_step;
  bool fused;
};

}  // namespace

void AttendClassPagesImpl(const PackedForm& form, const PackedRun& run, const PackedRows& rows,
                          PackedScratch& scratch) {
  const PackedRoom& room = scratch.room;
  if (room.terms == 2 && room.groups == 1)
    return StepThroughPages<ClassedCodes<true>>(form, run, rows, scratch);
  StepThroughPages<ClassedCodes<false>>(form, run, rows, scratch);
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(AttendClassPagesImpl);

void AttendClassPages(const PackedForm& form, const PackedRun& run, const PackedRows& rows,
                      PackedScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(AttendClassPagesImpl)(form, run, rows, scratch);
}

}  // namespace kvring
#endif
