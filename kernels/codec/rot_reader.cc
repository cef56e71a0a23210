// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/rot_reader.h"

#include "kernels/ref/packed_attention.h"

namespace kvring {

RotReader::RotReader(const RotReaderOptions& options)
    : options_(options),
      fits_(PackedFormFits(options.form) && options.block_tokens == kPackedBlock &&
            !options.grouped) {
  if (fits_) turns_ = MakePageTurns(options_.rope, options_.block_tokens);
}

bool RotReader::Prepare(const AttendArgs& args, const float* mean, PackedQueries& queries) const {
  if (!fits_ || args.packed_q == nullptr) return false;
  const int64_t rows = static_cast<int64_t>(args.positions.size());
  QuantizeQueries(options_.form, args.packed_q, rows, queries);
  queries.planes = queries.stride = 0;
  queries.value_basis.clear();
  if (mean != nullptr) TurnQueries(*options_.rope[args.layer], mean, args.raw_q, rows, queries);
  return true;
}

void RotReader::AttendPlain(const AttendArgs& args, const PageView& page, int64_t first,
                            int64_t last, const float* mean, const SoftmaxPartial& partial) const {
  RotPageRef form;
  form.bits = options_.form.bits;
  form.dk = options_.form.dk;
  form.dv = options_.form.dv;
  form.rope = options_.rope[args.layer];
  form.mean = mean;
  AttendArgs rows = args;
  rows.pages = {&page, 1};
  rows.positions = args.positions.subspan(first, last - first);
  rows.raw_q += first * args.dk;
  rows.packed_q += first * args.dk;
  AttendPackedRef(form, *turns_[args.layer], rows, partial.Slice(first, last - first));
}

int64_t RotReader::Attend(const AttendArgs& args, std::span<const PageView> pages, int64_t first,
                          int64_t last, const float* mean, AttendScratch& scratch,
                          const SoftmaxPartial& partial) const {
  if (args.prepared == nullptr) return 0;
  const PageTurns& turns = *turns_[args.layer];
  if (args.form.math == AttentionMath::kPlainInt8) {
    if (!turns.Covers(pages.front().begin)) return 0;
    AttendPlain(args, pages.front(), first, last, mean, partial);
    return 1;
  }
  const PackedReading reading{
      options_.form,
      {0, options_.k_word_bytes, options_.k_bytes, options_.k_bytes + options_.v_word_bytes},
      &turns};
  return AttendPackedViews(reading, args, pages, first, last, scratch, partial);
}

}  // namespace kvring
