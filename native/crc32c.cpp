/* CRC-32C (Castagnoli): eight table lookups per eight bytes, or the CPU's own instruction. */
#include <array>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#include "blocks.h"

namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

Tables make_tables() {
  Tables t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
    t[0][i] = c;
  }
  for (uint32_t i = 0; i < 256; ++i)
    for (int k = 1; k < 8; ++k) t[k][i] = t[0][t[k - 1][i] & 255] ^ t[k - 1][i] >> 8;
  return t;
}

uint32_t by_table(uint32_t crc, const uint8_t *data, uint64_t n) {
  static const Tables t = make_tables();
  for (; n >= 8; n -= 8, data += 8) {
    uint32_t next = 0;
    for (int k = 0; k < 4; ++k) next ^= t[7 - k][(crc >> 8 * k & 255) ^ data[k]];
    for (int k = 4; k < 8; ++k) next ^= t[7 - k][data[k]];
    crc = next;
  }
  for (; n; --n) crc = t[0][(crc ^ *data++) & 255] ^ crc >> 8;
  return crc;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const uint8_t *data, uint64_t n) {
  uint64_t wide = crc;
  for (; n >= 8; n -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; n; --n) crc = _mm_crc32_u8(crc, *data++);
  return crc;
}
#endif

} // namespace

uint32_t sw_crc32c(const uint8_t *data, uint64_t n, uint32_t start) {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("sse4.2");
  if (fast) return ~by_instruction(~start, data, n);
#endif
  return ~by_table(~start, data, n);
}
