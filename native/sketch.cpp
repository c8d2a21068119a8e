/* Around the sketch: lattice integers and back, the index, the checksum.
 * src/sumwire/kernels/sketch/reference.py defines every function. */
#include <algorithm>

#include "sketch.h"
#include "sparse.h"

using sw::below;
using sw::hash64;

namespace {

constexpr uint64_t CHUNK = 32;   /* words of a bitmap that are handled at once */
constexpr uint64_t AHEAD = 2048; /* coordinates: hardware does not fetch across pages */
constexpr uint64_t INDEX_STREAM = 0x5851F42D4C957F2Dull;
constexpr uint64_t CHECK = 0xD6E8FEB86659FD93ull;

inline uint64_t rotl(uint64_t v, unsigned by) { return v << (by & 63) | v >> (-by & 63); }
inline uint64_t rotr(uint64_t v, unsigned by) { return v >> (by & 63) | v << (-by & 63); }

/* Where a group of 64 coordinates lies in a Bloom filter: words, and how far its bits are rotated there. */
struct Probe {
  uint64_t h, step;
  Probe(const sw_geometry &g, uint64_t group) : h(hash64(g.key ^ INDEX_STREAM, group)), step(rotl(h, 32) | 1) {}
  void next() { h += step; }
  uint64_t word(const sw_geometry &g) const { return below(h, g.words); }
  unsigned turn() const { return h & 63; }
};

/* Which of n <= 64 float32 words are neither +0 nor -0, as bits. */
uint64_t some_nonzero(const uint32_t *x, uint64_t n) {
  uint64_t bits = 0;
  for (uint64_t i = 0; i < n; ++i) bits |= uint64_t{(x[i] << 1) != 0} << i;
  return bits;
}

uint64_t which_nonzero(const uint32_t *x) {
#if defined(SW_X86)
  uint64_t zero = 0;
  for (int k = 0; k < 4; ++k) {
    __m128i same[4];
    for (int j = 0; j < 4; ++j) {
      const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i *>(x + 16 * k + 4 * j));
      same[j] = _mm_cmpeq_epi32(_mm_add_epi32(v, v), _mm_setzero_si128());
    }
    const __m128i bytes = _mm_packs_epi16(_mm_packs_epi32(same[0], same[1]), _mm_packs_epi32(same[2], same[3]));
    zero |= static_cast<uint64_t>(_mm_movemask_epi8(bytes)) << 16 * k;
  }
  return ~zero;
#else
  return some_nonzero(x, 64);
#endif
}

/* The coordinates of a group that an index does not rule out, as bits. */
uint64_t allowed(const sw_geometry &g, const uint64_t *words, uint64_t group) {
  uint64_t bits = g.probes == 0 ? words[group] : ~uint64_t{0};
  if (g.probes) {
    Probe probe(g, group);
    for (int k = 0; k < g.probes && bits; ++k, probe.next()) bits &= rotr(words[probe.word(g)], probe.turn());
  }
  const uint64_t rest = g.size - 64 * group;
  return rest < 64 ? bits & ((uint64_t{1} << rest) - 1) : bits;
}

/* Appends where bits are set, counted from `start`, to those found; returns their new number. */
uint64_t list(const sw::SparseOps &best, const uint64_t *bits, uint64_t n, uint64_t start, uint32_t *at,
              uint64_t found) {
  const uint64_t end = found + best.positions(bits, n, at + found);
  for (uint64_t i = found; i < end; ++i) at[i] += static_cast<uint32_t>(start);
  return end;
}

} // namespace

/* Coordinates and words of what is not zero; at has room for n + 64, words for n. Returns how many were found. */
SW_API uint64_t sw_sketch_nonzeros(const uint32_t *x, uint64_t n, uint32_t *at, uint32_t *words) {
  const sw::SparseOps &best = sw::sparse_ops();
  uint64_t found = 0;
  for (uint64_t start = 0; start < n; start += 64 * CHUNK) {
    const uint64_t size = std::min(64 * CHUNK, n - start);
    uint64_t bits[CHUNK];
    for (uint64_t i = 0; i < size; i += 64) {
      for (uint64_t line = 0; line < 64; line += 16) __builtin_prefetch(x + start + i + AHEAD + line);
      bits[i / 64] = size - i < 64 ? some_nonzero(x + start + i, size - i) : which_nonzero(x + start + i);
    }
    best.compact(x + start, 4, size, bits, words + found, n - found);
    found = list(best, bits, (size + 63) / 64, start, at, found);
  }
  return found;
}

/* out[i] = word i as a multiple of 2**lsb, or 0 with escapes[i] = 1. Returns how many escape. */
SW_API uint64_t sw_sketch_quantize(const uint32_t *words, uint64_t n, int32_t exponent, int32_t lsb, int64_t *out,
                                   uint8_t *escapes) {
  uint64_t count = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t word = words[i];
    const int field = static_cast<int>(word >> 23 & 255);
    const int64_t mantissa = (word & 0x7FFFFF) | (field ? 1 << 23 : 0);
    const int shift = std::max(field, 1) - 150 - lsb;
    const int up = std::clamp(shift, 0, 62), down = std::clamp(-shift, 0, 63);
    const bool off = field > exponent || (mantissa >> down) << down != mantissa;
    const int64_t whole = off ? 0 : static_cast<int64_t>(static_cast<uint64_t>(mantissa) << up) >> down;
    out[i] = word >> 31 ? -whole : whole;
    escapes[i] = off;
    count += off;
  }
  return count;
}

SW_API void sw_sketch_mark(const sw_geometry *g, const uint32_t *at, uint64_t n, uint64_t *words) {
  if (g->probes == 0) {
    for (uint64_t i = 0; i < n; ++i) words[at[i] >> 6] |= uint64_t{1} << (at[i] & 63);
    return;
  }
  for (uint64_t i = 0; i < n;) {
    const uint64_t group = at[i] >> 6;
    uint64_t bits = 0;
    for (; i < n && at[i] >> 6 == group; ++i) bits |= uint64_t{1} << (at[i] & 63);
    Probe probe(*g, group);
    for (int k = 0; k < g->probes; ++k, probe.next()) words[probe.word(*g)] |= rotl(bits, probe.turn());
  }
}

/* out has room for g->size + 64; returns how many were found. */
SW_API uint64_t sw_sketch_candidates(const sw_geometry *g, const uint64_t *words, uint32_t *out) {
  const sw::SparseOps &best = sw::sparse_ops();
  const uint64_t groups = (g->size + 63) / 64;
  uint64_t found = 0;
  for (uint64_t start = 0; start < groups; start += CHUNK) {
    const uint64_t n = std::min(CHUNK, groups - start);
    uint64_t bits[CHUNK];
    for (uint64_t i = 0; i < n; ++i) bits[i] = allowed(*g, words, start + i);
    found = list(best, bits, n, 64 * start, out, found);
  }
  return found;
}

SW_API uint64_t sw_sketch_checksum(uint64_t key, const uint32_t *at, const int64_t *values, uint64_t n) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t h = (at[i] + key) * CHECK;
    sum += ((h ^ h >> 32) | 1) * static_cast<uint64_t>(values[i]);
  }
  return sum;
}

/* out[at[i]] = float32(values[i] * 2**lsb) / count, the first rounding being the only one of the sum. */
SW_API void sw_sketch_finish(const uint32_t *at, const int64_t *values, uint64_t n, int32_t lsb, int32_t count,
                             float *out) {
  const sw::PlainFloats plain;
  /* Through double without rounding twice: of what it cannot hold, one sticky bit stays. */
  const double step = __builtin_ldexp(1.0, lsb), large_step = 2048 * step;
  const float divisor = static_cast<float>(count);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t v = static_cast<uint64_t>(values[i]), size = values[i] < 0 ? 0 - v : v;
    const bool large = size >> 53;
    const uint64_t kept = large ? size >> 11 | (size & 2047 ? 1 : 0) : size;
    const double exact = static_cast<double>(static_cast<int64_t>(kept)) * (large ? large_step : step);
    out[at[i]] = static_cast<float>(values[i] < 0 ? -exact : exact) / divisor;
  }
}
