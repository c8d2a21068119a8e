/* Bits follow the energy: the width of every block, in integers alone. */
#include <algorithm>
#include <limits>
#include <vector>

#include "walk.h"

using namespace sw;

void sw_allocate(const float *scales, uint64_t size, int32_t log_block, int64_t budget, int64_t energy, uint32_t ladder,
                 int32_t floor, uint8_t *out) {
  const PlainFloats plain;
  const Blocks blocks(size, log_block);
  const uint64_t count = blocks.count();
  int widest = 0, step[64] = {};
  for (int w = 0; w <= SW_MAX_BITS; ++w)
    if (ladder >> w & 1) widest = w;
  for (int w = 0, now = 0; w < 64; ++w) {
    if (w <= SW_MAX_BITS && ladder >> w & 1) now = w;
    step[w] = std::max(now, floor);
  }
  /* The float's own bits, 8 of the fraction. */
  const auto log2_of = [&](uint64_t i) {
    uint32_t bits;
    std::memcpy(&bits, scales + i, 4);
    return static_cast<int64_t>(bits >> 15);
  };
  const auto lanes_of = [&](uint64_t i) { return scales[i] > 0 ? static_cast<int64_t>(blocks[i].size()) : 0; };
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
  for (uint64_t i = 0; i < count; ++i) {
    least = std::min(least, log2_of(i));
    most = std::max(most, log2_of(i));
  }
  /* The search sees blocks one by one, or by level where that is fewer. */
  const bool by_level = most - least < static_cast<int64_t>(count);
  std::vector<int64_t> level, lanes;
  if (by_level) {
    for (int64_t l = least; l <= most; ++l) level.push_back(l * energy);
    lanes.assign(level.size(), 0);
    for (uint64_t i = 0; i < count; ++i) lanes[static_cast<size_t>(log2_of(i) - least)] += lanes_of(i);
  } else {
    for (uint64_t i = 0; i < count; ++i) {
      level.push_back(log2_of(i) * energy);
      lanes.push_back(lanes_of(i));
    }
  }
  const auto width_at = [&](int64_t l, int64_t c) {
    return step[std::min<int64_t>(std::max<int64_t>((l + c) >> 16, 0), widest)];
  };
  const auto cost = [&](int64_t c) {
    int64_t sum = 0;
    for (size_t i = 0; i < level.size(); ++i) sum += lanes[i] * width_at(level[i], c);
    return sum;
  };
  const int64_t top = most * energy;
  int64_t low = -top, high = int64_t{widest + 1} << 16;
  while (low < high) {
    const int64_t sum = low + high + 1, middle = sum >> 1; /* floor, as in Python */
    if (cost(middle) <= budget)
      low = middle;
    else
      high = middle - 1;
  }
  int64_t left = budget - cost(low);
  for (uint64_t i = 0; i < count; ++i) {
    const int64_t own = lanes_of(i), l = log2_of(i) * energy;
    const int width = width_at(l, low), wider = width_at(l, low + 1);
    const int64_t more = (wider - width) * own;
    const bool widen = more > 0 && more <= left;
    if (widen) left -= more;
    out[i] = static_cast<uint8_t>(own ? (widen ? wider : width) : 0);
  }
}
