/* Bits follow the energy: the width of every block, in integers alone. */
#include <algorithm>
#include <vector>

#include "walk.h"

namespace sw {
namespace {

/* Blocks above 0 that get the same width whatever c is: those of one level, or each block by itself. */
class Levels {
public:
  Levels(const float *scales, const Blocks &blocks, int64_t energy) : scales_(scales) {
    const uint64_t count = blocks.count();
    uint32_t least = UINT32_MAX, most = 0;
    for (uint64_t i = 0; i < count; ++i) {
      if (!bits(i)) continue;
      least = std::min(least, log2_of(i));
      most = std::max(most, log2_of(i));
    }
    if (least > most) return;
    /* Scales of a byte have 255 levels at most; those of float32 may have more than there are blocks. */
    by_level_ = most - least < 16 * count;
    least_ = least;
    std::vector<int64_t> lanes(by_level_ ? most - least + 1 : count);
    for (uint64_t i = 0; i < count; ++i)
      if (bits(i)) lanes[by_level_ ? log2_of(i) - least : i] += static_cast<int64_t>(blocks[i].size());
    place_.resize(lanes.size());
    for (size_t k = 0; k < lanes.size(); ++k) {
      if (!lanes[k]) continue;
      place_[k] = static_cast<uint32_t>(lanes_.size());
      lanes_.push_back(lanes[k]);
      level_.push_back((by_level_ ? least + static_cast<int64_t>(k) : int64_t{log2_of(k)}) * energy);
    }
  }
  uint32_t bits(uint64_t i) const {
    uint32_t found;
    std::memcpy(&found, scales_ + i, 4);
    return found;
  }
  size_t count() const { return lanes_.size(); }
  int64_t level(size_t k) const { return level_[k]; }
  int64_t lanes(size_t k) const { return lanes_[k]; }
  /* Which of them a block above 0 belongs to. */
  size_t of(uint64_t i) const { return place_[by_level_ ? log2_of(i) - least_ : i]; }

private:
  /* The float's own bits, 8 of the fraction. */
  uint32_t log2_of(uint64_t i) const { return bits(i) >> 15; }

  const float *scales_;
  bool by_level_ = false;
  uint32_t least_ = 0;
  std::vector<int64_t> level_, lanes_;
  std::vector<uint32_t> place_;
};

} // namespace
} // namespace sw

using namespace sw;

void sw_allocate(const float *scales, uint64_t size, int32_t log_block, int64_t budget, int64_t energy, uint32_t ladder,
                 int32_t floor, uint8_t *out) {
  const Blocks blocks(size, log_block);
  const Levels levels(scales, blocks, energy);
  int widest = 0, step[SW_MAX_BITS + 1] = {};
  for (int w = 0, now = 0; w <= SW_MAX_BITS; ++w) {
    if (ladder >> w & 1) widest = now = w;
    step[w] = std::max(now, floor);
  }
  const auto width_at = [&](int64_t level, int64_t c) {
    return step[std::min<int64_t>(std::max<int64_t>((level + c) >> 16, 0), widest)];
  };
  const auto cost = [&](int64_t c) {
    int64_t sum = 0;
    for (size_t k = 0; k < levels.count(); ++k) sum += levels.lanes(k) * width_at(levels.level(k), c);
    return sum;
  };
  int64_t top = 0;
  for (size_t k = 0; k < levels.count(); ++k) top = std::max(top, levels.level(k));
  int64_t low = -top, high = int64_t{widest + 1} << 16;
  while (low < high) {
    const int64_t sum = low + high + 1, middle = sum >> 1; /* floor, as in Python */
    if (cost(middle) <= budget)
      low = middle;
    else
      high = middle - 1;
  }
  std::vector<uint8_t> width(levels.count()), wider(levels.count());
  for (size_t k = 0; k < levels.count(); ++k) {
    width[k] = static_cast<uint8_t>(width_at(levels.level(k), low));
    wider[k] = static_cast<uint8_t>(width_at(levels.level(k), low + 1));
  }
  int64_t left = budget - cost(low);
  for (uint64_t i = 0; i < blocks.count(); ++i) {
    if (!levels.bits(i)) {
      out[i] = 0;
      continue;
    }
    const size_t k = levels.of(i);
    const int64_t more = (wider[k] - width[k]) * static_cast<int64_t>(blocks[i].size());
    const bool widen = more > 0 && more <= left;
    if (widen) left -= more;
    out[i] = widen ? wider[k] : width[k];
  }
}
