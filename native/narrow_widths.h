/* How many bits the blocks of a narrow sum get: src/sumwire/kernels/lattice/segments.py defines it. */
#pragma once
#include "lattice_narrow.h"
#include "walk.h"

namespace sw {
namespace {

constexpr size_t kLeastBlock = 64;
constexpr int kWidest = 33;

/* Blocks a..b, whose widths are chosen together. Whole ones come first: their widths are summed at once. */
class Choice {
public:
  explicit Choice(const Blocks &blocks) : blocks_(blocks), ops_(narrow_ops()) {}

  void start(uint64_t a, uint64_t b) {
    first_ = a;
    level_.resize(b - a);
    exact_.resize(b - a);
    const uint64_t size = b > a ? blocks_[a].size() : 0, whole = std::max(std::min(b, blocks_.whole()), a);
    whole_ = size < kLeastBlock ? 0 : whole - a;
    whole_cost_ = static_cast<int64_t>(size);
  }
  void set(uint64_t i, float scale, int64_t energy, uint8_t lanes) {
    level_[i - first_] = static_cast<int32_t>((generic::bits_of(scale) >> 15) * energy);
    exact_[i - first_] = lanes;
  }
  void solve(int64_t budget, uint8_t *out) {
    const int32_t c = largest_that_fits(budget);
    int64_t left = budget - total(c);
    const auto choose = [&](size_t i, int32_t width, int32_t wider, int64_t cost) {
      const int64_t more = (wider - width) * cost;
      const bool widen = more > 0 && more <= left;
      left -= widen ? more : 0;
      out[i] = static_cast<uint8_t>(widen ? wider : width);
    };
    for (size_t i = 0; i < whole_; ++i)
      choose(i, generic::width_at(level_[i], exact_[i], c), generic::width_at(level_[i], exact_[i], c + 1),
             whole_cost_);
    for (size_t i = whole_; i < level_.size(); ++i) choose(i, at(i, c), at(i, c + 1), cost(i));
  }

private:
  /* Begins where the last search ended: neighboring segments have similar energy. */
  int32_t largest_that_fits(int64_t budget) {
    int32_t most = 0;
    for (int32_t l : level_) most = std::max(most, l);
    int32_t low = -most, high = kWidest << 16, c = std::min(std::max(last_, low), high);
    const auto halve = [&] {
      if (total(c) <= budget)
        low = c;
      else
        high = c - 1;
    };
    halve();
    const bool upwards = low == c;
    for (int32_t step = 1 << 12; upwards ? low == c && low < high : high == c - 1 && low < high; step *= 2) {
      c = upwards ? std::min(c + step, high) : std::max(c - step, low + 1);
      halve();
    }
    while (low < high) {
      c = (low + high + 1) >> 1; /* floor, as in Python */
      halve();
    }
    return last_ = low;
  }
  int64_t cost(size_t i) const {
    const uint64_t size = blocks_[first_ + i].size();
    return size < kLeastBlock ? 0 : static_cast<int64_t>(size);
  }
  int32_t at(size_t i, int32_t c) const { return cost(i) ? generic::width_at(level_[i], exact_[i], c) : exact_[i]; }
  int64_t total(int32_t c) const {
    int64_t sum = ops_.widths(level_.data(), exact_.data(), whole_, c) * whole_cost_;
    for (size_t i = whole_; i < level_.size(); ++i) sum += at(i, c) * cost(i);
    return sum;
  }

  const Blocks &blocks_;
  const NarrowOps &ops_;
  std::vector<int32_t> level_, exact_;
  uint64_t first_ = 0;
  size_t whole_ = 0;
  int64_t whole_cost_ = 0;
  int32_t last_ = 0;
};

/* Widths of one segment's blocks a..b; coarse and out begin there. */
inline void choose_widths(const sw_scheme &scheme, const uint8_t *classes, const float *scales, const uint8_t *coarse,
                          int64_t energy, int64_t budget, uint64_t a, uint64_t b, Choice &choice, uint8_t *out) {
  choice.start(a, b);
  for (uint64_t i = a; i < b; ++i) {
    const sw_lattice &lattice = scheme.lattices[classes[i]];
    const uint8_t lanes = coarse[i - a] && lattice.granularity ? static_cast<uint8_t>(lattice.lane_bits) : 0;
    choice.set(i, scales[i] * coarse_value(coarse[i - a]), energy, lanes);
  }
  choice.solve(budget, out);
}

} // namespace
} // namespace sw
