// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/bpe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "runtime/text/byte_alphabet.h"

namespace kvring {
namespace {

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
constexpr int32_t kNone = -1;

// Words up to this length are remembered: longer ones rarely come twice.
constexpr size_t kCachedWordBytes = 48;
// About 10 MB at most for one call; English text of any length stays far below.
constexpr size_t kCachedWords = 1 << 16;

// Longer words are merged in parts, so that the lists need no more than some 100 MB. No language has such words; a run of one
// character may get other ids at the parts' borders than in one piece, and decodes the same.
constexpr size_t kMergedTogether = size_t{4} << 20;

struct Merge {
  int32_t rank = kNoRank;
  int32_t result = kNone;  // symbol
};

// A place in the list of symbols of one word.
struct Node {
  int32_t symbol;
  int32_t prev, next;  // kNone at the ends
  int32_t
      rank;  // of the merge with the next symbol; kNoRank when there is none or the node is gone
};

struct Candidate {
  int32_t rank;
  int32_t node;
  // For a heap whose front is the best rank, the leftmost of equals.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : node > other.node;
  }
};

struct CachedWord {
  uint32_t begin, count;  // in Scratch::Impl::cached_ids
  int32_t dropped;
};

absl::string_view View(const char* p, size_t n) { return absl::string_view(p, n); }

}  // namespace

struct BpeModel::Scratch::Impl {
  std::vector<Node> nodes;
  std::vector<Candidate> heap;
  absl::flat_hash_map<std::string, CachedWord> cache;
  std::vector<int32_t> cached_ids;
};

BpeModel::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {}
BpeModel::Scratch::~Scratch() = default;

// A symbol is a byte string: the id of the token that plain text may become, or, from num_tokens upwards, a string without
// such a token (a byte that the vocabulary lacks, or what a merge makes of one).
struct BpeModel::Impl {
  int32_t num_tokens = 0;
  bool whole_words = false;
  int num_byte_tokens = 0;
  std::array<int32_t, 256> byte_symbol;
  absl::flat_hash_map<std::string, int32_t> symbol_of;  // emptied after Create unless whole_words
  std::vector<std::string> tokenless;                   // bytes of symbol num_tokens + i
  absl::flat_hash_map<uint64_t, Merge> merges;          // by PairKey

  static uint64_t PairKey(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  int32_t Intern(const std::string& bytes);
  absl::Status AddMerge(const std::string& merge, int32_t rank);
  Merge FindMerge(int32_t left, int32_t right) const;

  void Offer(int32_t node, std::vector<Node>& nodes, std::vector<Candidate>& heap) const;
  void Fill(const char* word, size_t bytes, Scratch::Impl& s) const;
  void MergeAll(Scratch::Impl& s) const;
  int64_t Emit(int32_t symbol, std::vector<int32_t>* ids) const;
  int64_t EncodeFresh(const char* word, size_t bytes, Scratch::Impl& s,
                      std::vector<int32_t>* ids) const;
};

int32_t BpeModel::Impl::Intern(const std::string& bytes) {
  const auto [it, is_new] =
      symbol_of.try_emplace(bytes, num_tokens + static_cast<int32_t>(tokenless.size()));
  if (is_new) tokenless.push_back(bytes);
  return it->second;
}

absl::Status BpeModel::Impl::AddMerge(const std::string& merge, int32_t rank) {
  const size_t space = merge.find(' ', 1);
  if (merge.empty() || space == std::string::npos || space + 1 == merge.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("merge ", rank, " is not two symbols with a space between"));
  }
  const auto left = BytesFromSpelling(merge.substr(0, space));
  const auto right = BytesFromSpelling(merge.substr(space + 1));
  if (!left || !right) {
    return absl::InvalidArgumentError(
        absl::StrCat("merge ", rank, " holds a character outside the 256 of byte-level BPE"));
  }
  const uint64_t pair = PairKey(Intern(*left), Intern(*right));
  merges.try_emplace(pair,
                     Merge{rank, Intern(*left + *right)});  // of repeated merges the best counts
  return absl::OkStatus();
}

Merge BpeModel::Impl::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges.find(PairKey(left, right));
  return it == merges.end() ? Merge{} : it->second;
}

// Notes the merge of a node with the next one, if there is one.
void BpeModel::Impl::Offer(int32_t node, std::vector<Node>& nodes,
                           std::vector<Candidate>& heap) const {
  Node& left = nodes[node];
  left.rank = left.next == kNone ? kNoRank : FindMerge(left.symbol, nodes[left.next].symbol).rank;
  if (left.rank == kNoRank) return;
  heap.push_back({left.rank, node});
  std::push_heap(heap.begin(), heap.end());
}

void BpeModel::Impl::Fill(const char* word, size_t bytes, Scratch::Impl& s) const {
  const int32_t n = static_cast<int32_t>(bytes);
  s.nodes.resize(bytes);
  s.heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    s.nodes[i] = {byte_symbol[static_cast<uint8_t>(word[i])], i - 1, i + 1 < n ? i + 1 : kNone,
                  kNoRank};
  }
  for (int32_t i = 0; i < n; ++i) Offer(i, s.nodes, s.heap);
}

// Every merge removes a node and offers at most two candidates: O(n log n). A candidate is stale when its node's rank has
// changed since; a rank names one pair of symbols, so an equal rank means that the pair still stands there.
void BpeModel::Impl::MergeAll(Scratch::Impl& s) const {
  while (!s.heap.empty()) {
    const Candidate best = s.heap.front();
    std::pop_heap(s.heap.begin(), s.heap.end());
    s.heap.pop_back();
    Node& left = s.nodes[best.node];
    if (left.rank != best.rank) continue;
    Node& right = s.nodes[left.next];
    left.symbol = FindMerge(left.symbol, right.symbol).result;
    right.rank = kNoRank;
    left.next = right.next;
    if (left.next != kNone) s.nodes[left.next].prev = best.node;
    Offer(best.node, s.nodes, s.heap);
    if (left.prev != kNone) Offer(left.prev, s.nodes, s.heap);
  }
}

// A symbol without a token falls apart into its bytes' tokens; returns how many bytes have none.
int64_t BpeModel::Impl::Emit(int32_t symbol, std::vector<int32_t>* ids) const {
  if (symbol < num_tokens) {
    ids->push_back(symbol);
    return 0;
  }
  int64_t dropped = 0;
  for (const char byte : tokenless[symbol - num_tokens]) {
    const int32_t token = byte_symbol[static_cast<uint8_t>(byte)];
    if (token < num_tokens) {
      ids->push_back(token);
    } else {
      ++dropped;
    }
  }
  return dropped;
}

int64_t BpeModel::Impl::EncodeFresh(const char* word, size_t bytes, Scratch::Impl& s,
                                    std::vector<int32_t>* ids) const {
  if (whole_words) {
    const auto it = symbol_of.find(View(word, bytes));
    if (it != symbol_of.end() && it->second < num_tokens) {
      ids->push_back(it->second);
      return 0;
    }
  }
  Fill(word, bytes, s);
  MergeAll(s);
  int64_t dropped = 0;
  for (int32_t at = 0; at != kNone; at = s.nodes[at].next) dropped += Emit(s.nodes[at].symbol, ids);
  return dropped;
}

BpeModel::BpeModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BpeModel::~BpeModel() = default;

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Create(const VocabData& vocab,
                                                           const std::vector<bool>& reachable,
                                                           bool whole_words) {
  auto impl = std::make_unique<Impl>();
  impl->num_tokens = static_cast<int32_t>(vocab.tokens.size());
  impl->whole_words = whole_words;
  for (int32_t id = 0; id < impl->num_tokens; ++id) {
    const auto bytes = reachable[id] ? BytesFromSpelling(vocab.tokens[id]) : std::nullopt;
    // A token outside the alphabet cannot come from bytes. Of equal ones the last counts, as in llama.cpp.
    if (bytes && !bytes->empty()) impl->symbol_of[*bytes] = id;
  }
  for (int byte = 0; byte < 256; ++byte) {
    impl->byte_symbol[byte] = impl->Intern(std::string(1, static_cast<char>(byte)));
  }
  impl->num_byte_tokens = 256 - static_cast<int>(impl->tokenless.size());
  for (size_t rank = 0; rank < vocab.merges.size(); ++rank) {
    KVRING_RETURN_IF_ERROR(impl->AddMerge(vocab.merges[rank], static_cast<int32_t>(rank)));
  }
  if (!whole_words) impl->symbol_of = {};
  return std::unique_ptr<BpeModel>(new BpeModel(std::move(impl)));
}

int64_t BpeModel::Encode(const char* word, size_t bytes, Scratch& scratch,
                         std::vector<int32_t>* ids) const {
  if (bytes == 0) return 0;
  Scratch::Impl& s = *scratch.impl_;
  if (bytes > kMergedTogether) {
    const int64_t dropped = impl_->EncodeFresh(word, kMergedTogether, s, ids);
    return dropped + Encode(word + kMergedTogether, bytes - kMergedTogether, scratch, ids);
  }
  if (bytes > kCachedWordBytes) return impl_->EncodeFresh(word, bytes, s, ids);
  const auto it = s.cache.find(View(word, bytes));
  if (it != s.cache.end()) {
    const auto begin = s.cached_ids.begin() + it->second.begin;
    ids->insert(ids->end(), begin, begin + it->second.count);
    return it->second.dropped;
  }
  const size_t before = ids->size();
  const int64_t dropped = impl_->EncodeFresh(word, bytes, s, ids);
  if (s.cache.size() < kCachedWords) {
    s.cache.emplace(
        std::string(word, bytes),
        CachedWord{static_cast<uint32_t>(s.cached_ids.size()),
                   static_cast<uint32_t>(ids->size() - before), static_cast<int32_t>(dropped)});
    s.cached_ids.insert(s.cached_ids.end(), ids->begin() + before, ids->end());
  }
  return dropped;
}

int BpeModel::num_byte_tokens() const { return impl_->num_byte_tokens; }

}  // namespace kvring
