// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/tc_bits.h"

#include <algorithm>
#include <cctype>
#include <queue>
#include <tuple>

namespace kvring {
namespace {

constexpr double kDistortion[] = {1.0,      0.3634,   0.1175,   0.03454,
                                  0.009497, 0.002499, 0.000641, 0.000163};

// The next bit of a class and what it gains; the largest gain comes first, then the lowest index.
struct Offer {
  double gain;
  size_t index;
  bool operator<(const Offer& other) const {
    return std::tuple(gain, other.index) < std::tuple(other.gain, index);
  }
};

double Gain(double energy, int bits) {
  return energy * (kDistortion[bits] - kDistortion[bits + 1]);
}

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

}  // namespace

double TcDistortion(int bits) { return kDistortion[bits]; }

std::vector<uint8_t> WaterFill(std::span<const double> energy, int64_t budget) {
  std::vector<uint8_t> bits(energy.size(), 0);
  std::priority_queue<Offer> offers;
  for (size_t i = 0; i < energy.size(); ++i) offers.push({Gain(energy[i], 0), i});
  for (; budget > 0 && !offers.empty(); --budget) {
    const size_t i = offers.top().index;
    offers.pop();
    if (++bits[i] < kTcMaxBits) offers.push({Gain(energy[i], bits[i]), i});
  }
  return bits;
}

int ParseTcRate(const std::string& name) {
  if (name.rfind("tc", 0) != 0) return 0;
  const size_t begin = name.size() > 2 && name[2] == '@' ? 3 : 2;
  if (begin >= name.size() || !IsDigit(name[begin])) return 0;
  int rate = (name[begin] - '0') * 100;
  if (begin + 1 < name.size()) {
    const std::string decimals = name.substr(begin + 1);
    if (decimals.size() < 2 || decimals.size() > 3 || decimals[0] != '.') return 0;
    if (!std::all_of(decimals.begin() + 1, decimals.end(), IsDigit)) return 0;
    rate += (decimals[1] - '0') * 10 + (decimals.size() == 3 ? decimals[2] - '0' : 0);
  }
  return rate >= 100 && rate <= kTcMaxBits * 100 ? rate : 0;
}

int64_t TcBudget(int rate_hundredths, int64_t coefficients) {
  return rate_hundredths * coefficients / (int64_t{100} * kTcClass);
}

}  // namespace kvring
