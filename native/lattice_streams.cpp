/* Where blocks and lanes of a Lattice payload lie in streams, and where in memory. */
#include <algorithm>
#include <cstring>
#include <vector>

#include "sumwire.h"

namespace {

constexpr uint32_t GROUP = 256; /* lanes that are packed together */

/* Lanes first..first + count of words that hold `per_word` lanes each, from the lowest bits on. */
template <typename Lane>
void unpack(const uint8_t *words, uint64_t first, uint32_t count, uint32_t bits, uint32_t per_word, Lane *out) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  uint64_t at = first / per_word;
  uint32_t skipped = uint32_t(first % per_word);
  for (Lane *end = out + count; out < end; at++, skipped = 0) {
    uint64_t word;
    std::memcpy(&word, words + 8 * at, 8);
    word >>= bits * skipped;
    Lane *stop = std::min(end, out + (per_word - skipped));
    for (; out < stop; word >>= bits) *out++ = Lane(word & mask);
  }
}

template <typename Lane, uint32_t per_byte>
void reorder(const Lane *from, uint32_t block, Lane *to) {
  const uint32_t group = std::min(block, GROUP), bytes = group / per_byte; /* byte j holds lanes j, j + bytes, ... */
  for (uint32_t at = 0; at < block; at += group)
    for (uint32_t k = 0; k < per_byte; k++)
      for (uint32_t j = 0; j < bytes; j++) to[at + k * bytes + j] = from[at + j * per_byte + k];
}

template <typename Lane>
void spread(const uint8_t *data, uint32_t block, uint32_t width, uint32_t bits, uint32_t per_word,
            const int64_t *starts, uint64_t count, uint8_t *out) {
  std::vector<Lane> packed(block), ordered(block);
  for (uint64_t k = 0; k < count; k++) {
    if (bits == 8 * sizeof(Lane))
      std::memcpy(packed.data(), data + k * block * sizeof(Lane), block * sizeof(Lane));
    else
      unpack(data, k * block, block, bits, per_word, packed.data());
    switch (8 / width) {
    case 1: reorder<Lane, 1>(packed.data(), block, ordered.data()); break;
    case 2: reorder<Lane, 2>(packed.data(), block, ordered.data()); break;
    case 4: reorder<Lane, 4>(packed.data(), block, ordered.data()); break;
    default: reorder<Lane, 8>(packed.data(), block, ordered.data()); break;
    }
    std::memcpy(out + starts[k], ordered.data(), block * sizeof(Lane));
  }
}

} // namespace

void sw_gather_blocks(const uint8_t *data, const int64_t *starts, uint64_t nbytes, uint64_t count, uint8_t *out) {
  for (uint64_t k = 0; k < count; k++) std::memcpy(out + k * nbytes, data + starts[k], nbytes);
}

void sw_spread_lanes(const uint8_t *data, uint32_t block, uint32_t width, uint32_t bits, uint32_t per_word,
                     uint32_t lane, const int64_t *starts, uint64_t count, uint8_t *out) {
  if (lane == 1)
    spread<uint8_t>(data, block, width, bits, per_word, starts, count, out);
  else if (lane == 2)
    spread<uint16_t>(data, block, width, bits, per_word, starts, count, out);
  else
    spread<uint32_t>(data, block, width, bits, per_word, starts, count, out);
}
