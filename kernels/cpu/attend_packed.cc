// SPDX-License-Identifier: Apache-2.0
// Pages whose codes have one width, as words that come apart by shifts; and the room that all forms need.
#define HWY_WANT_AVX3_DL  // Highway builds its newest x86 target on demand only

#include "kernels/cpu/attend_packed.h"

#include <algorithm>
#include <iterator>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_packed.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/packed_page-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace {

template <DotKind kKind>
HWY_INLINE void DotBits(int bits, const DotArgs& t, int64_t lanes, int64_t rows) {
  // Elsewhere taking codes apart costs too much to do it again for every pass.
  if (!KVRING_VNNI || bits == kReady) return Dot<kKind, kReady>(t, lanes, rows);
#if KVRING_VNNI
  if (bits == 2) return Dot<kKind, 2>(t, lanes, rows);
  if (bits == 3) return Dot<kKind, 3>(t, lanes, rows);
  if (bits == 4) return Dot<kKind, 4>(t, lanes, rows);
  Dot<kKind, 8>(t, lanes, rows);
#endif
}

template <DotKind kKind>
HWY_INLINE void UnpackBits(int bits, const DotArgs& t, int64_t lanes, uint32_t* to) {
  if (bits == 2) return Unpack<kKind, 2>(t, lanes, to);
  if (bits == 3) return Unpack<kKind, 3>(t, lanes, to);
  if (bits == 4) return Unpack<kKind, 4>(t, lanes, to);
  Unpack<kKind, 8>(t, lanes, to);
}

// Codes of one width (packed_page-inl.h).
struct WordCodes {
  static constexpr int kMaxGroups = 1, kOrder = 0;
  static constexpr bool kSteps = false;
  static constexpr int TermScale(int) { return 0; }
  static constexpr int terms() { return 1; }
  static constexpr int groups() { return 1; }

  WordCodes(const PackedForm& form, const PackedRoom& room, const PackedQueries&, bool fused)
      : form(form), room(room), fused(fused) {}

  float KeyStep(const PackedQueries& q, int64_t row, int) const {
    return form.unit * q.q_scale[row];
  }

  DotArgs Side(const PackedPage& from, const uint8_t* words, int64_t stride, int dim) const {
    DotArgs t;
    t.words = reinterpret_cast<const uint32_t*>(words);
    t.stride = stride;
    t.next = from.next;
    t.groups = dim / 4;
    t.level = form.level;
    return t;
  }

  void Unpack(const PackedPage& page) const {
    UnpackBits<DotKind::kQuery>(form.bits, Side(page, page.k_words, kPackedBlock, form.dk),
                                kPackedBlock, room.keys);
    UnpackBits<DotKind::kWeight>(form.bits, Side(page, page.v_words, form.dv, kPackedBlock),
                                 form.dv, room.values);
  }

  void Keys(const PackedPage& of, const PackedQueries& q, int64_t row, int64_t count,
            int32_t* out) const {
    DotArgs t = Side(of, of.k_words, kPackedBlock, form.dk);
    if (!fused) t.words = room.keys;
    t.a = reinterpret_cast<const uint32_t*>(q.q.data() + row * q.dk);
    t.lda = q.dk / 4;
    t.q_sum = q.q_sum.data() + row;
    t.out = out;
    t.ldo = kPackedBlock;
    DotBits<DotKind::kQuery>(fused ? form.bits : kReady, t, kPackedBlock, count);
  }

  void Values(const PackedPage& page, int64_t count) const {
    AddValues(page, count, nullptr, nullptr);
  }

  void AddValues(const PackedPage& page, int64_t count, const float* step, float* o) const {
    DotArgs t = Side(page, page.v_words, form.dv, kPackedBlock);
    if (!fused) t.words = room.values;
    t.a = reinterpret_cast<const uint32_t*>(room.weights);
    t.lda = kPackedBlock / 4;
    t.out = room.sums;
    t.ldo = form.dv;
    t.step = step;
    t.o = o;
    DotBits<DotKind::kWeight>(fused ? form.bits : kReady, t, form.dv, count);
  }

  const PackedForm& form;
  const PackedRoom& room;
  bool fused;
};

}  // namespace

void AttendWordPages(const PackedForm& form, const PackedRun& run, const PackedRows& rows,
                     PackedScratch& scratch) {
  StepThroughPages<WordCodes>(form, run, rows, scratch);
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(AttendWordPages);

// Each part on whole cache lines.
void MakeRoom(const PackedForm& form, int stride, PackedScratch& scratch) {
  PackedRoom& room = scratch.room;
  room.dk = form.dk, room.dv = form.dv, room.stride = stride;
  room.terms = form.Terms(), room.groups = form.Groups();
  room.has_pairs = form.bits == 0;
  const int64_t slots = kPackedGroup * kPackedBlock;
  const int64_t sizes[] = {int64_t{form.dk} * 16,
                           int64_t{form.dv} * 16,
                           slots * room.terms,
                           slots * room.terms,
                           slots,
                           slots,
                           kPackedGroup * form.dv,
                           slots * room.groups,
                           slots / 4 * room.groups,
                           kPackedGroup * ((stride + 31) / 32 * 32),
                           form.bits > 0 ? 0 : 2 * slots * room.groups};
  constexpr int kPieces = std::size(sizes);
  int64_t words = 16;
  for (const int64_t size : sizes) words += (size + 15) / 16 * 16;
  scratch.words.resize(static_cast<size_t>(words));
  uint32_t* at = scratch.words.data();
  while (reinterpret_cast<uintptr_t>(at) % 64 != 0) ++at;
  uint32_t* piece[kPieces];
  for (int i = 0; i < kPieces; at += (sizes[i] + 15) / 16 * 16, ++i) piece[i] = at;
  const auto sums = [&](int i) { return reinterpret_cast<int32_t*>(piece[i]); };
  room.keys = piece[0];
  room.values = piece[1];
  for (int i = 0; i < 2; ++i) {
    room.scores[i] = sums(2 + i);
    room.bias[i] = sums(4 + i);
  }
  room.sums = sums(6);
  room.logits = reinterpret_cast<float*>(piece[7]);
  room.weights = reinterpret_cast<uint8_t*>(piece[8]);
  room.z = piece[9];
  room.pairs = piece[10];
  scratch.ahead = nullptr;
}

bool HasRoom(const PackedForm& form, int stride, const PackedRoom& room) {
  if (room.dk != form.dk || room.dv != form.dv || room.stride != stride) return false;
  return room.terms == form.Terms() && room.groups == form.Groups() &&
         (form.bits > 0 || room.has_pairs);
}

}  // namespace

bool PackedFormFits(const PackedForm& form) {
  const bool keys = form.dk % (form.bits > 0 ? 32 : 16) == 0;
  return keys && form.dv % 16 == 0 && std::max(form.dk, form.dv) <= kPackedMaxDim;
}

void AttendPackedPages(const PackedForm& form, const PackedRun& run, const PackedRows& rows,
                       PackedScratch& scratch) {
  const int stride = rows.queries->stride;
  if (!HasRoom(form, stride, scratch.room)) MakeRoom(form, stride, scratch);
  if (form.bits == 0) return AttendClassPages(form, run, rows, scratch);
  HWY_DYNAMIC_DISPATCH(AttendWordPages)(form, run, rows, scratch);
}

}  // namespace kvring
#endif
