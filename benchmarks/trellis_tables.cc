// SPDX-License-Identifier: Apache-2.0
// Finds a table of kernels/codec/trellis_tables.cc and prints it with the error that it leaves on normal numbers.
//
//   trellis_tables BITS [STARTS [CHANGES]]
//
// The quantiles of N(0,1) in random order, then Lloyd's iteration on a fixed sample: code it on the trellis, put every entry at
// the mean of what it stands for. The best of STARTS such tables is then changed CHANGES times, a few entries swapped and
// Lloyd's iteration run again; a change that leaves less error stays. Rows of 64, as most codecs have them, so that the few
// windows at a row's beginning count as they should. Fixed seeds, but no two compilers sum alike: another build may find other
// tables, as good. The tables of the codec were found with 16 starts and 160 changes, a minute of one core each.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

namespace {

constexpr int kWindow = 7, kEntries = 1 << kWindow;
constexpr int kRows = 64, kLanes = 16;  // coefficients of a row, rows coded at once
constexpr int kPiece = kRows * kLanes;

using Table = std::vector<float>;

// Codes one piece [kRows][kLanes] from a window of zeros: the squared error, and the entry of every number.
double Code(const Table& table, int bits, const float* z, uint8_t* entry) {
  const int states = 1 << (kWindow - bits), ways = 1 << bits;
  std::vector<float> least(states * kLanes, HUGE_VALF), next(states * kLanes);
  std::vector<uint8_t> back(kRows * states * kLanes);
  std::fill_n(least.begin(), kLanes, 0.0f);
  for (int i = 0; i < kRows; ++i) {
    for (int s = 0; s < states; ++s) {
      float* const best = &next[s * kLanes];
      uint8_t* const way = &back[(i * states + s) * kLanes];
      std::fill_n(best, kLanes, HUGE_VALF);
      for (int j = 0; j < ways; ++j) {
        const int window = s << bits | j;
        const float* const from = &least[(window & (states - 1)) * kLanes];
        for (int l = 0; l < kLanes; ++l) {
          const float rest = z[i * kLanes + l] - table[window];
          const float error = from[l] + rest * rest;
          way[l] = error < best[l] ? static_cast<uint8_t>(j) : way[l];
          best[l] = std::min(error, best[l]);
        }
      }
    }
    least.swap(next);
  }
  double total = 0.0;
  for (int l = 0; l < kLanes; ++l) {
    int state = 0;
    for (int s = 1; s < states; ++s) {
      if (least[s * kLanes + l] < least[state * kLanes + l]) state = s;
    }
    total += least[state * kLanes + l];
    for (int i = kRows - 1; i >= 0; --i) {
      const int window = state << bits | back[(i * states + state) * kLanes + l];
      entry[i * kLanes + l] = static_cast<uint8_t>(window);
      state = window & (states - 1);
    }
  }
  return total;
}

std::vector<float> Normals(int pieces, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> z(static_cast<size_t>(pieces) * kPiece);
  for (float& x : z) x = normal(random);
  return z;
}

// Mean squared error of the first `pieces` of the sample; moves the entries to the means of what they stood for when `move`.
double Pass(Table& table, int bits, const std::vector<float>& sample, int pieces, bool move) {
  std::vector<double> sum(kEntries, 0.0), count(kEntries, 0.0);
  uint8_t entry[kPiece];
  double total = 0.0;
  for (int p = 0; p < pieces; ++p) {
    const float* const z = &sample[static_cast<size_t>(p) * kPiece];
    total += Code(table, bits, z, entry);
    for (int i = 0; i < kPiece; ++i) {
      sum[entry[i]] += z[i];
      count[entry[i]] += 1.0;
    }
  }
  for (int w = 0; move && w < kEntries; ++w) {
    if (count[w] > 0.0) table[w] = static_cast<float>(sum[w] / count[w]);
  }
  return total / (static_cast<double>(pieces) * kPiece);
}

double Lloyd(Table& table, int bits, const std::vector<float>& sample, int coarse, int fine) {
  for (int i = 0; i < coarse; ++i) Pass(table, bits, sample, 48, true);
  double error = 0.0;
  for (int i = 0; i < fine; ++i) error = Pass(table, bits, sample, 128, true);
  return error;
}

float NormalQuantile(double p) {
  double low = -9.0, high = 9.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return static_cast<float>((low + high) / 2);
}

Table RandomTable(std::mt19937& random) {
  Table table(kEntries);
  for (int i = 0; i < kEntries; ++i) table[i] = NormalQuantile((i + 0.5) / kEntries);
  std::shuffle(table.begin(), table.end(), random);
  return table;
}

// Swaps a few entries: any two, or neighbours in size.
void Change(Table& table, std::mt19937& random, bool neighbours) {
  const int swaps = 1 + static_cast<int>(random() % 4);
  if (!neighbours) {
    for (int i = 0; i < swaps; ++i)
      std::swap(table[random() % kEntries], table[random() % kEntries]);
    return;
  }
  std::vector<int> order(kEntries);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return table[a] < table[b]; });
  for (int i = 0; i < 4 * swaps; ++i) {
    const size_t at = random() % (kEntries - 1);
    std::swap(table[order[at]], table[order[at + 1]]);
  }
}

Table Find(int bits, int starts, int changes) {
  const std::vector<float> sample = Normals(256, 5);
  std::mt19937 random(7);
  Table best;
  double least = HUGE_VAL;
  const auto keep = [&](Table table, double error) {
    if (error >= least) return;
    least = error;
    best = std::move(table);
  };
  for (int i = 0; i < starts; ++i) {
    Table table = RandomTable(random);
    const double error = Lloyd(table, bits, sample, 25, 15);
    keep(std::move(table), error);
  }
  for (int i = 0; i < changes; ++i) {
    Table table = best;
    Change(table, random, i % 3 == 0);
    const double error = Lloyd(table, bits, sample, 12, 4);
    keep(std::move(table), error);
  }
  for (int i = 0; i < 60; ++i) Pass(best, bits, sample, 256, true);
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int bits = argc > 1 ? std::atoi(argv[1]) : 0;
  if (bits < 1 || bits > 6) {
    std::fprintf(stderr, "usage: trellis_tables BITS [STARTS [CHANGES]], BITS from 1 to 6\n");
    return 1;
  }
  Table table = Find(bits, argc > 2 ? std::max(1, std::atoi(argv[2])) : 16,
                     argc > 3 ? std::atoi(argv[3]) : 160);
  float largest = 0.0f;
  for (const float x : table) largest = std::max(largest, std::fabs(x));
  std::vector<int> level(kEntries);
  for (int w = 0; w < kEntries; ++w) {
    level[w] = static_cast<int>(std::lrint(table[w] / largest * 127));
    table[w] = static_cast<float>(level[w]) * largest / 127;
  }
  const std::vector<float> test = Normals(1024, 99);
  std::printf("%d bits: mean squared error %.6f, largest %.5f\n", bits,
              Pass(table, bits, test, 1024, false), largest);
  for (const int x : level) std::printf("%d, ", x);
  std::printf("\n");
  return 0;
}
