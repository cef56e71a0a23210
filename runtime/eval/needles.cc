// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/needles.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <random>

namespace kvring {
namespace {

// Common words, each one or two tokens in most vocabularies. Keys are a colour and a thing, phrases three words of the last list.
constexpr const char* kColours[] = {"red",    "green",  "blue",   "white", "black", "golden",
                                    "silver", "brown",  "grey",   "pink",  "old",   "quiet",
                                    "hidden", "broken", "little", "great"};
constexpr const char* kThings[] = {
    "lighthouse", "garden", "bridge", "tower",   "harbor", "engine", "library", "window",
    "mountain",   "island", "castle", "station", "market", "church", "school",  "theater"};
constexpr const char* kWords[] = {
    "amber",  "falcon",  "river",  "copper", "winter", "apple",  "stone",  "tiger",
    "orange", "thunder", "paper",  "velvet", "ocean",  "candle", "forest", "mirror",
    "dragon", "butter",  "marble", "rocket", "summer", "violin", "desert", "planet",
    "lemon",  "hammer",  "pepper", "shadow", "cotton", "eagle",  "basket", "crystal"};
constexpr int kPhraseWords = 3;
// A share of the excerpt has at least so many tokens, about half a sentence: neighbours must not touch.
constexpr int64_t kLeastShare = 8;

using Random = std::mt19937_64;

std::vector<int> Shuffled(int n, Random& random) {
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  // Not std::shuffle: its draws differ between libraries.
  for (int i = n - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
  return order;
}

absl::StatusOr<std::vector<int32_t>> Ids(const Tokenizer& tokenizer, const std::string& text) {
  KVRING_ASSIGN_OR_RETURN(EncodeResult encoded,
                          tokenizer.Encode(text, {BeginToken::kNever, false}));
  return std::move(encoded.ids);
}

absl::StatusOr<std::vector<Needle>> MakeNeedles(const Tokenizer& tokenizer, int count,
                                                Random& random) {
  const int n = static_cast<int>(std::size(kColours));
  const std::vector<int> colours = Shuffled(n, random), things = Shuffled(n, random);
  std::vector<Needle> needles(count);
  for (int j = 0; j < count; ++j) {
    Needle& needle = needles[j];
    needle.key = absl::StrCat(kColours[colours[j % n]], " ", kThings[things[(j + j / n) % n]]);
    const std::vector<int> words = Shuffled(static_cast<int>(std::size(kWords)), random);
    for (int w = 0; w < kPhraseWords; ++w)
      absl::StrAppend(&needle.phrase, w == 0 ? "" : " ", kWords[words[w]]);
    const std::string claim = absl::StrCat("The pass-phrase of the ", needle.key, " is");
    KVRING_ASSIGN_OR_RETURN(needle.sentence,
                            Ids(tokenizer, absl::StrCat(" ", claim, " ", needle.phrase, ".")));
    KVRING_ASSIGN_OR_RETURN(needle.question, Ids(tokenizer, absl::StrCat("\n", claim)));
    KVRING_ASSIGN_OR_RETURN(needle.answer, Ids(tokenizer, absl::StrCat(" ", needle.phrase)));
    if (needle.question.empty() || needle.answer.empty())
      return absl::InvalidArgumentError("the model's vocabulary has no tokens for English words");
  }
  return needles;
}

bool StartsWithSpace(const std::string& piece) {
  return !piece.empty() && (piece.front() == ' ' || piece.front() == '\n');
}

// A sentence may end behind token i.
bool IsBorder(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, size_t i) {
  const std::string& piece = tokenizer.Piece(ids[i]);
  if (piece.empty()) return false;
  if (piece.back() == '\n') return true;
  const bool stop = piece.back() == '.' || piece.back() == '!' || piece.back() == '?';
  return stop && i + 1 < ids.size() && StartsWithSpace(tokenizer.Piece(ids[i + 1]));
}

// Tokens of the excerpt before sentence j: the border nearest to the middle of share j, the earlier of two.
int64_t PlaceOf(const Tokenizer& tokenizer, const std::vector<int32_t>& excerpt, int j, int count) {
  const int64_t n = static_cast<int64_t>(excerpt.size());
  const int64_t begin = n * j / count, end = n * (j + 1) / count, middle = (begin + end) / 2;
  int64_t place = -1;
  for (int64_t at = begin + 1; at < end; ++at) {
    const bool nearer = place < 0 || std::abs(at - middle) < std::abs(place - middle);
    if (nearer && IsBorder(tokenizer, excerpt, at - 1)) place = at;
  }
  return place < 0 ? middle : place;
}

void Plant(const Tokenizer& tokenizer, NeedleText& text) {
  const int count = static_cast<int>(text.needles.size());
  int64_t copied = 0;
  const auto copy_to = [&](int64_t end) {
    text.ids.insert(text.ids.end(), text.excerpt.begin() + copied, text.excerpt.begin() + end);
    copied = end;
  };
  for (int j = 0; j < count; ++j) {
    Needle& needle = text.needles[j];
    needle.offset = PlaceOf(tokenizer, text.excerpt, j, count);
    copy_to(needle.offset);
    needle.position = static_cast<int64_t>(text.ids.size());
    text.ids.insert(text.ids.end(), needle.sentence.begin(), needle.sentence.end());
  }
  copy_to(static_cast<int64_t>(text.excerpt.size()));
}

// Tokens that sentences and the longest question with its answer take.
int64_t TokensBeside(const std::vector<Needle>& needles) {
  size_t sentences = 0, asked = 0;
  for (const Needle& needle : needles) {
    sentences += needle.sentence.size();
    asked = std::max(asked, needle.question.size() + needle.answer.size());
  }
  return static_cast<int64_t>(sentences + asked);
}

}  // namespace

int MaxDepths() { return static_cast<int>(std::size(kColours) * std::size(kThings)); }

absl::StatusOr<std::vector<NeedleText>> PlantNeedles(const Tokenizer& tokenizer,
                                                     const std::vector<int32_t>& ids,
                                                     const NeedleOptions& o) {
  if (o.texts < 1)
    return absl::InvalidArgumentError(absl::StrCat("--texts ", o.texts, ": at least 1"));
  if (o.depths < 1 || o.depths > MaxDepths()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--depths ", o.depths, ": from 1 to ", MaxDepths()));
  }
  const int64_t have = static_cast<int64_t>(ids.size());
  std::vector<NeedleText> texts(o.texts);
  int64_t next = 0;
  for (int t = 0; t < o.texts; ++t) {
    std::seed_seq seeds{static_cast<uint32_t>(o.seed), static_cast<uint32_t>(o.seed >> 32),
                        static_cast<uint32_t>(t)};
    Random random(seeds);
    KVRING_ASSIGN_OR_RETURN(texts[t].needles, MakeNeedles(tokenizer, o.depths, random));
    const int64_t beside = TokensBeside(texts[t].needles), excerpt = o.length - beside;
    if (excerpt < kLeastShare * o.depths) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--length ", o.length, ": ", o.depths, " sentences and a question take ", beside,
          " tokens; at least ", beside + kLeastShare * o.depths, " are needed"));
    }
    if (next + excerpt > have) {
      return absl::InvalidArgumentError(absl::StrCat("the text has ", have, " tokens; ", o.texts,
                                                     " texts of ", o.length, " tokens need about ",
                                                     next + excerpt * (o.texts - t)));
    }
    texts[t].excerpt.assign(ids.begin() + next, ids.begin() + next + excerpt);
    next += excerpt;
    Plant(tokenizer, texts[t]);
  }
  return texts;
}

}  // namespace kvring
