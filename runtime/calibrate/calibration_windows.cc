// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/calibration_windows.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace kvring {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014).
class Generator {
 public:
  explicit Generator(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

absl::Status CheckCounts(int64_t window, int64_t count) {
  if (window >= 2 && count >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot calibrate on ", count, " windows of ",
                                                 window, " tokens: at least 1 of 2"));
}

// `count` windows of the `tokens` tokens from `first` on. The remainder's bias is below 2^-40 for any text that fits a machine.
void Draw(Generator& generator, int64_t first, int64_t tokens, int64_t window, int64_t count,
          std::vector<int64_t>& begins) {
  if (tokens / window < count || tokens == window * count) {
    for (int64_t i = 0; i < std::min(tokens / window, count); ++i)
      begins.push_back(first + i * window);
    return;
  }
  const auto places = static_cast<uint64_t>(tokens - window + 1);
  for (int64_t i = 0; i < count; ++i)
    begins.push_back(first + static_cast<int64_t>(generator.Next() % places));
}

// Windows of each text: the next always goes to the text that is furthest below its share, ties to the earlier one, which is
// the method of the largest remainder; no text gets more than it holds.
std::vector<int64_t> Shares(std::span<const int64_t> tokens, int64_t window, int64_t count) {
  std::vector<int64_t> shares(tokens.size(), 0), holds;
  int64_t all = 0, texts = 0, room = 0;
  for (const int64_t t : tokens) {
    holds.push_back(t / window);
    room += holds.back();
    all += holds.back() > 0 ? t : 0;
    texts += holds.back() > 0;
  }
  const int64_t give = std::min(count, room);
  int64_t given = 0;
  for (size_t i = 0; give >= texts && i < tokens.size(); ++i)
    given += shares[i] = std::min<int64_t>(holds[i], 1);
  for (; given < give; ++given) {
    std::optional<size_t> neediest;
    double most = 0.0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (shares[i] == holds[i]) continue;
      const double share =
          static_cast<double>(count) * static_cast<double>(tokens[i]) / static_cast<double>(all);
      const double below = share - static_cast<double>(shares[i]);
      if (neediest && below <= most) continue;
      neediest = i;
      most = below;
    }
    ++shares[*neediest];
  }
  return shares;
}

struct Stretch {
  int text = 0;
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
};

// What the windows leave of each text.
std::vector<Stretch> Stretches(std::span<const int64_t> text_tokens,
                               std::span<const int64_t> begins, int64_t window) {
  std::vector<int64_t> sorted(begins.begin(), begins.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<Stretch> left;
  int64_t first = 0;
  for (int text = 0; text < static_cast<int>(text_tokens.size()); ++text) {
    const int64_t end = first + text_tokens[text];
    int64_t from = first;
    for (const int64_t begin : sorted) {
      if (begin + window <= from || begin >= end) continue;
      if (begin > from) left.push_back({text, from, begin});
      from = begin + window;
    }
    if (from < end) left.push_back({text, from, end});
    first = end;
  }
  return left;
}

// The longest of a text, or of any with text -1; null when none has `least` tokens.
Stretch* Longest(std::vector<Stretch>& stretches, int text, int64_t least) {
  Stretch* longest = nullptr;
  for (Stretch& stretch : stretches) {
    if ((text >= 0 && stretch.text != text) || stretch.length() < least) continue;
    if (longest == nullptr || stretch.length() > longest->length()) longest = &stretch;
  }
  return longest;
}

}  // namespace

absl::StatusOr<CalibrationWindows> ChooseWindows(int64_t tokens, int64_t window, int64_t count,
                                                 uint64_t seed) {
  KVRING_RETURN_IF_ERROR(CheckCounts(window, count));
  const int64_t whole = tokens / window;
  if (whole < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", tokens, " tokens, fewer than one window of ", window));
  }
  CalibrationWindows windows;
  Generator generator(seed);
  Draw(generator, 0, tokens, window, count, windows.begins);
  if (whole < count) {
    windows.notes.push_back(absl::StrCat("the text has ", tokens, " tokens: ", whole,
                                         " windows of ", window, " instead of ", count));
  }
  return windows;
}

absl::StatusOr<CalibrationWindows> ChooseWindows(std::span<const int64_t> text_tokens,
                                                 int64_t window, int64_t count, uint64_t seed) {
  KVRING_RETURN_IF_ERROR(CheckCounts(window, count));
  const int64_t tokens = std::accumulate(text_tokens.begin(), text_tokens.end(), int64_t{0});
  const bool any = std::any_of(text_tokens.begin(), text_tokens.end(),
                               [&](int64_t text) { return text >= window; });
  if (text_tokens.size() < 2 || !any) return ChooseWindows(tokens, window, count, seed);
  const std::vector<int64_t> shares = Shares(text_tokens, window, count);
  CalibrationWindows windows;
  Generator generator(seed);
  int64_t first = 0;
  for (size_t i = 0; i < text_tokens.size(); ++i) {
    Draw(generator, first, text_tokens[i], window, shares[i], windows.begins);
    first += text_tokens[i];
    if (text_tokens[i] >= window) continue;
    windows.notes.push_back(absl::StrCat("text ", i + 1, " has ", text_tokens[i],
                                         " tokens, fewer than a window of ", window,
                                         ": it is left out"));
  }
  const auto drawn = static_cast<int64_t>(windows.begins.size());
  if (drawn < count) {
    windows.notes.push_back(absl::StrCat("the texts have ", tokens, " tokens: ", drawn,
                                         " windows of ", window, " instead of ", count));
  }
  return windows;
}

HeldOutWindows ChooseHeldOut(std::span<const int64_t> text_tokens, std::span<const int64_t> begins,
                             int64_t window, int64_t longest, int64_t count) {
  std::vector<Stretch> left = Stretches(text_tokens, begins, window);
  HeldOutWindows held_out;
  const Stretch* const most = Longest(left, -1, 0);
  if (most == nullptr || std::min(most->length(), longest) < kLeastHeldOut) return held_out;
  held_out.window = std::min(most->length(), longest);
  std::vector<int> order(text_tokens.size());  // of texts, the longest first
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return text_tokens[a] > text_tokens[b]; });
  for (int64_t i = 0; i < count; ++i) {
    Stretch* from = Longest(left, order[i % order.size()], held_out.window);
    if (from == nullptr) from = Longest(left, -1, held_out.window);
    if (from == nullptr) break;
    const int64_t begin = from->begin + (from->length() - held_out.window) / 2;
    held_out.begins.push_back(begin);
    const Stretch behind{from->text, begin + held_out.window, from->end};
    from->end = begin;
    left.push_back(behind);
  }
  return held_out;
}

}  // namespace kvring
