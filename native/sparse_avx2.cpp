/* Sparse operations with 256-bit vectors: lanes move by a permutation that a byte of the bitmap looks up. */
#include "sparse_generic.h"

#if defined(__AVX2__)
#include <immintrin.h>

#include <algorithm>

namespace sw {
namespace {

using Vec = __m256i;

/* For each byte of a bitmap: the lanes of its set bits in order, and for each lane how many are set before it. */
struct Lanes {
  alignas(8) uint8_t compact[256][8];
  alignas(8) uint8_t expand[256][8];
  constexpr Lanes() : compact(), expand() {
    for (int byte = 0; byte < 256; ++byte) {
      int set = 0;
      for (int lane = 0; lane < 8; ++lane) {
        expand[byte][lane] = static_cast<uint8_t>(set & 7);
        if (byte >> lane & 1) compact[byte][set++] = static_cast<uint8_t>(lane);
      }
    }
  }
};
constexpr Lanes kLanes;

/* With more than this many set bits in a word, eight lookups are faster than a walk from bit to bit. */
constexpr int kCrowded = 8;

inline Vec load(const void *p) { return _mm256_loadu_si256(static_cast<const Vec *>(p)); }
inline Vec order(const uint8_t (&lanes)[8]) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(lanes)));
}
inline size_t ones(uint64_t bits) { return static_cast<size_t>(_mm_popcnt_u64(bits)); }

/* Bit j: whether the j-th of 32 values is not zero. */
inline uint32_t mask32(const uint32_t *x) {
  const Vec zero = _mm256_setzero_si256();
  const auto is_zero = [&](int i) { return _mm256_cmpeq_epi32(load(x + 8 * i), zero); };
  const Vec low = _mm256_packs_epi32(is_zero(0), is_zero(1)), high = _mm256_packs_epi32(is_zero(2), is_zero(3));
  const Vec all = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  return ~static_cast<uint32_t>(_mm256_movemask_epi8(all));
}
inline uint32_t mask32(const uint16_t *x) {
  const Vec zero = _mm256_setzero_si256();
  const Vec low = _mm256_cmpeq_epi16(load(x), zero), high = _mm256_cmpeq_epi16(load(x + 16), zero);
  const Vec all = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xD8);
  return ~static_cast<uint32_t>(_mm256_movemask_epi8(all));
}

void scan(const void *x, int bytes, size_t n, uint64_t *words) {
  sparse::typed(x, bytes, [&](auto *from) {
    sparse::scan_words(from, n, words, [](auto *p) { return mask32(p) | static_cast<uint64_t>(mask32(p + 32)) << 32; });
  });
}

size_t compact(const void *x, int bytes, size_t n, const uint64_t *words, void *values, size_t room) {
  if (bytes != 4) return sparse::compact(x, bytes, n, words, values, room);
  const auto pick = [](uint64_t word, const uint32_t *from, uint32_t *to) {
    if (ones(word) <= kCrowded) {
      for (; word; word &= word - 1) *to++ = from[sparse::lowest(word)];
      return to;
    }
    for (int i = 0; i < 8; ++i) {
      const uint8_t byte = static_cast<uint8_t>(word >> 8 * i);
      const Vec v = _mm256_permutevar8x32_epi32(load(from + 8 * i), order(kLanes.compact[byte]));
      _mm256_storeu_si256(reinterpret_cast<Vec *>(to), v);
      to += ones(byte);
    }
    return to;
  };
  return sparse::compact_words(static_cast<const uint32_t *>(x), n, words, static_cast<uint32_t *>(values), room, pick);
}

size_t expand(const uint64_t *words, size_t n, const float *values, size_t have, float *out) {
  const Vec bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return sparse::expand_words(words, n, values, have, out, [&](uint64_t word, const float *from, float *to) {
    if (ones(word) <= kCrowded) {
      std::memset(to, 0, 64 * sizeof(float));
      for (; word; word &= word - 1) std::memcpy(to + sparse::lowest(word), from++, sizeof(float));
      return from;
    }
    for (int i = 0; i < 8; ++i) {
      const int byte = static_cast<int>(word >> 8 * i & 255);
      const Vec v = _mm256_permutevar8x32_epi32(load(from), order(kLanes.expand[byte]));
      const Vec set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(byte), bit), bit);
      _mm256_storeu_si256(reinterpret_cast<Vec *>(to + 8 * i), _mm256_and_si256(v, set));
      from += ones(static_cast<uint64_t>(byte));
    }
    return from;
  });
}

void stream(float *out, const float *x, size_t n) {
  sparse::stream_vectors<8>(out, x, n, [](float *to, const float *p) { _mm256_stream_ps(to, _mm256_loadu_ps(p)); });
}

const SparseOps kAvx2 = {scan,
                         compact,
                         expand,
                         sparse::accumulate,
                         sparse::divide,
                         stream,
                         sparse::count,
                         sparse::facts,
                         sparse::positions,
                         sparse::sum_shifted,
                         sparse::write_rice};

} // namespace

const SparseOps *sparse_avx2_ops() { return &kAvx2; }

} // namespace sw

#else

namespace sw {
const SparseOps *sparse_avx2_ops() { return nullptr; }
} // namespace sw

#endif
