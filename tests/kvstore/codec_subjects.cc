// SPDX-License-Identifier: Apache-2.0
#include "tests/kvstore/codec_subjects.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "tests/support/nuq_tables.h"
#include "tests/support/tc_tables.h"

namespace kvring {
namespace {

constexpr KvShape kShape{.layers = 2, .query_heads = 4, .kv_heads = 2, .dk = 64, .dv = 64};

// Forms of calibrated codecs that differ to a shard: slots or lists, scales of heads or tokens, bits that straddle words,
// no outliers. Tables: of the test rows themselves, so that outliers are as rare as they should be; or of narrower ones, so
// that every slot is taken and most outliers find none.
// Of tc: tables in which heads and layers differ in the size of their pages.
struct CalibratedForm {
  const char* row;
  std::vector<std::string> flags;
  bool own_tables;
};
const CalibratedForm kForms[] = {
    {"nuq4-1%", {}, true},        {"nuq3", {}, true},           {"nuq2-0.5%", {}, false},
    {"nuq4-1%", {"exact"}, true}, {"nuq3-1%", {"token"}, true}, {"nuq2-1%", {"paper"}, true},
    {"tc3", {}, false},           {"tc1.5", {}, false},         {"tc2", {"adapt"}, false},
};

std::shared_ptr<const CodecTables> TablesFor(const CalibratedForm& form) {
  if (FindCodec(form.row)->rate > 0) return TestTcTables(kShape);
  if (!form.own_tables) return TestNuqTables(kShape, form.flags);
  std::vector<int64_t> positions(1024);
  std::iota(positions.begin(), positions.end(), 0);
  const TestRows rows = MakeTestRows(kShape, 0, positions);
  return TestNuqTablesOfRows(kShape, form.row, form.flags, {rows.k, rows.v});
}

Subject MakeSubject(const CodecRow& row, const std::vector<std::string>& flags,
                    std::shared_ptr<const CodecTables> tables) {
  Subject subject;
  subject.name = row.name;
  for (const std::string& flag : flags) subject.name += ":" + flag;
  subject.is_mock = false;
  subject.shape = kShape;
  subject.rope = MakeTestRope(subject.shape);
  CodecOptions options{subject.shape, subject.RopePointers(), flags, std::move(tables)};
  CodecMade made = row.make(row, options);
  if (!made.codec) std::fprintf(stderr, "codec %s: %s\n", row.name, made.error.c_str());
  subject.codec = std::move(made.codec);
  return subject;
}

std::vector<Subject> MakeSubjects() {
  std::vector<Subject> subjects = MockSubjects();
  for (const CodecRow& row : AllCodecs()) {
    if (!row.calibrated) subjects.push_back(MakeSubject(row, {}, nullptr));
  }
  for (const CalibratedForm& form : kForms) {
    subjects.push_back(MakeSubject(*FindCodec(form.row), form.flags, TablesFor(form)));
  }
  return subjects;
}

}  // namespace

const std::vector<Subject>& AllSubjects() {
  static const auto* const subjects = new std::vector<Subject>(MakeSubjects());
  return *subjects;
}

const Subject& NamedSubject(const std::string& name) {
  for (const Subject& subject : AllSubjects()) {
    if (subject.name == name) return subject;
  }
  std::fprintf(stderr, "no subject %s\n", name.c_str());
  std::abort();
}

}  // namespace kvring
