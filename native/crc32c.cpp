/* CRC-32C (Castagnoli): eight table lookups per eight bytes, the CPU's own instruction, or products of polynomials. */
#include <array>

#if defined(__x86_64__)
#include <immintrin.h>
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

constexpr uint64_t kFold = 256;   /* bytes that are in registers */
constexpr uint64_t kAhead = 2048; /* bytes: how far ahead to prefetch */

/* Bytes are the coefficients of a polynomial. Modulo the CRC's, a message does not change when 16 bytes of it are
 * replaced by their product with x**(8 * distance), added `distance` bytes behind them. */
struct Factors {
  int64_t near, far; /* for the later and for the earlier 8 of the 16 bytes */
  explicit Factors(int distance) : near(power(8 * distance - 32)), far(power(8 * distance + 32)) {}

  /* x**n, bits reflected as in the CRC; the shift is what a product of reflected factors lacks. */
  static int64_t power(int n) {
    uint32_t r = 1u << 31;
    for (; n; --n) r = r & 1 ? r >> 1 ^ 0x82F63B78u : r >> 1;
    return static_cast<int64_t>(uint64_t{r} << 1);
  }
};

#define SW_PRODUCTS __attribute__((target("avx2,pclmul,vpclmulqdq,sse4.2")))

SW_PRODUCTS inline __m256i both_lanes(const Factors &f) { return _mm256_set_epi64x(f.near, f.far, f.near, f.far); }

SW_PRODUCTS inline __m256i fold(__m256i early, __m256i factors, __m256i late) {
  const __m256i far = _mm256_clmulepi64_epi128(early, factors, 0x00);
  const __m256i near = _mm256_clmulepi64_epi128(early, factors, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(far, near), late);
}

SW_PRODUCTS inline __m256i load(const uint8_t *data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(data));
}

/* Several products of 32 bytes each are in flight at a time: twice as fast as the instruction, in the cache. */
SW_PRODUCTS uint32_t by_products(uint32_t crc, const uint8_t *data, uint64_t n) {
  constexpr int kWide = kFold / 32;
  static const Factors all(kFold), one(32), half(16);
  if (n < 2 * kFold) return by_instruction(crc, data, n);
  const __m256i over_all = both_lanes(all), over_one = both_lanes(one);
  __m256i run[kWide];
  for (int k = 0; k < kWide; ++k) run[k] = load(data + 32 * k);
  run[0] = _mm256_xor_si256(run[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, static_cast<int>(crc)));
  for (n -= kFold, data += kFold; n >= kFold; n -= kFold, data += kFold) {
    for (uint64_t line = 0; line < kFold; line += 64) __builtin_prefetch(data + kAhead + line);
    for (int k = 0; k < kWide; ++k) run[k] = fold(run[k], over_all, load(data + 32 * k));
  }
  for (int k = 1; k < kWide; ++k) run[k] = fold(run[k - 1], over_one, run[k]);
  const __m256i last = run[kWide - 1];
  const __m256i first = _mm256_permute2x128_si256(last, last, 0x08); /* its lower 16 bytes, in the upper lane */
  const __m128i rest = _mm256_extracti128_si256(fold(first, both_lanes(half), last), 1);
  uint64_t wide = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(rest)));
  wide = _mm_crc32_u64(wide, static_cast<uint64_t>(_mm_extract_epi64(rest, 1)));
  return by_instruction(static_cast<uint32_t>(wide), data, n);
}
#endif

} // namespace

uint32_t sw_crc32c(const uint8_t *data, uint64_t n, uint32_t start) {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("sse4.2");
  static const bool faster = fast && __builtin_cpu_supports("vpclmulqdq");
  if (faster && &sw::ops() != &sw::kPortable) return ~by_products(~start, data, n);
  if (fast) return ~by_instruction(~start, data, n);
#endif
  return ~by_table(~start, data, n);
}
