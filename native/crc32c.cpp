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

constexpr uint64_t kRun = 1024;

/* What kRun zero bytes make of a CRC: it is linear, so a lookup for each of its bytes. */
using Skip = std::array<std::array<uint32_t, 256>, 4>;

Skip make_skip() {
  Skip skip{};
  const std::array<uint8_t, kRun> zeros{};
  for (int k = 0; k < 4; ++k)
    for (uint32_t i = 0; i < 256; ++i) skip[k][i] = by_table(i << 8 * k, zeros.data(), kRun);
  return skip;
}

uint32_t over(const Skip &skip, uint32_t crc) {
  return skip[0][crc & 255] ^ skip[1][crc >> 8 & 255] ^ skip[2][crc >> 16 & 255] ^ skip[3][crc >> 24];
}

__attribute__((target("sse4.2"))) inline uint64_t step(uint64_t crc, const uint8_t *data) {
  uint64_t word;
  std::memcpy(&word, data, 8);
  return _mm_crc32_u64(crc, word);
}

/* The instruction takes three cycles but one can begin in each: three runs side by side, then joined. */
__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const uint8_t *data, uint64_t n) {
  static const Skip skip = make_skip();
  uint64_t wide = crc;
  for (; n >= 3 * kRun; n -= 3 * kRun, data += 3 * kRun) {
    uint64_t second = 0, third = 0;
    for (uint64_t i = 0; i < kRun; i += 8) {
      wide = step(wide, data + i);
      second = step(second, data + kRun + i);
      third = step(third, data + 2 * kRun + i);
    }
    crc = over(skip, static_cast<uint32_t>(wide)) ^ static_cast<uint32_t>(second);
    wide = over(skip, crc) ^ third;
  }
  for (; n >= 8; n -= 8, data += 8) wide = step(wide, data);
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
