// SPDX-License-Identifier: Apache-2.0
#include "tests/kvstore/codec_subjects.h"

#include <cstdio>

namespace kvring {
namespace {

std::vector<Subject> MakeSubjects() {
  std::vector<Subject> subjects = MockSubjects();
  for (const CodecRow& row : AllCodecs()) {
    Subject subject;
    subject.name = row.name;
    subject.is_mock = false;
    subject.shape = {.layers = 2, .query_heads = 4, .kv_heads = 2, .dk = 64, .dv = 64};
    subject.rope = MakeTestRope(subject.shape);
    CodecMade made = row.make(row, {subject.shape, subject.RopePointers(), {}});
    if (!made.codec) std::fprintf(stderr, "codec %s: %s\n", row.name, made.error.c_str());
    subject.codec = std::move(made.codec);
    subjects.push_back(std::move(subject));
  }
  return subjects;
}

}  // namespace

const std::vector<Subject>& AllSubjects() {
  static const auto* const subjects = new std::vector<Subject>(MakeSubjects());
  return *subjects;
}

}  // namespace kvring
