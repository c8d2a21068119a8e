/* Scales on the raster of src/sumwire/kernels/lattice/scales.py, in integers alone. */
#include <algorithm>
#include <cstring>

#include "sumwire.h"

namespace {

constexpr uint32_t kFractions[8] = {0x0, 0xB95C2, 0x1837F1, 0x25FED7, 0x3504F4, 0x45672B, 0x5744FD, 0x6AC0C7};
constexpr uint32_t kNormal = 0x800000, kLargest = 0x79000000; /* 2**-126, 2**115 */
constexpr int32_t kBelow = 23, kSpan = 254;                   /* steps below kNormal, and of all scales of a tensor */

uint32_t bits_of(const float &scale) {
  uint32_t bits;
  std::memcpy(&bits, &scale, 4);
  return bits;
}

bool is_normal(uint32_t bits) { return bits >= kNormal && bits <= kLargest; }
bool is_small(uint32_t bits) { return bits && bits < kNormal; }

/* Without branches, for vectors: what is not normal stays as it is. */
uint32_t round_up(uint32_t bits) {
  const uint32_t fraction = bits & (kNormal - 1);
  uint32_t up = kNormal;
  for (int j = 7; j >= 0; --j) up = fraction <= kFractions[j] ? kFractions[j] : up;
  return is_normal(bits) ? bits - fraction + up : bits;
}

uint32_t round_up_small(uint32_t bits) {
  uint32_t power = 1;
  while (power < bits) power *= 2;
  return power;
}

/* Of bits on the raster. */
int32_t step_of(uint32_t bits) {
  int32_t step = 0;
  if (bits < kNormal) {
    while (bits >> (step + 1)) ++step;
    return step;
  }
  step = kBelow + (static_cast<int32_t>(bits >> 23) - 1) * 8;
  for (int j = 1; j < 8; ++j) step += (bits & (kNormal - 1)) >= kFractions[j];
  return step;
}

uint32_t bits_at(int32_t step) {
  if (step < kBelow) return uint32_t{1} << step;
  return static_cast<uint32_t>((step - kBelow) / 8 + 1) * kNormal + kFractions[(step - kBelow) % 8];
}

} // namespace

void sw_round_scales(float *scales, uint64_t count) {
  uint32_t top = 1, small = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t bits = round_up(bits_of(scales[i]));
    top = std::max(top, bits <= kLargest ? bits : 0);
    small |= is_small(bits);
    std::memcpy(scales + i, &bits, 4);
  }
  for (uint64_t i = 0; small && i < count; ++i) {
    if (!is_small(bits_of(scales[i]))) continue;
    const uint32_t bits = round_up_small(bits_of(scales[i]));
    top = std::max(top, bits);
    std::memcpy(scales + i, &bits, 4);
  }
  const uint32_t least = bits_at(std::max(step_of(top) - kSpan, 0));
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(scales[i]), raised = bits ? std::max(bits, least) : 0;
    std::memcpy(scales + i, &raised, 4);
  }
}
