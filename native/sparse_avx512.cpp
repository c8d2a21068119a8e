/* Sparse operations with 512-bit vectors: the bitmap's words are the masks.
 *
 * Vectors are compressed in registers and stored whole where there is room, because a compressing store is slow on
 * AMD; the last word of a run, and values near the end of their array, are left to the plain code. */
#include "sparse_generic.h"

#if defined(__AVX512BW__) && defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include <algorithm>

namespace sw {
namespace {

using Wide = __m512i;

inline __mmask16 part(uint64_t word, int i) { return static_cast<__mmask16>(word >> 16 * i); }
/* Set bits before the i-th part of a word. Counted from the word's start each, not one after the other: no part
 * then waits for another. */
inline size_t before(uint64_t word, int i) {
  return static_cast<size_t>(_mm_popcnt_u64(i == 4 ? word : word & ((uint64_t{1} << 16 * i) - 1)));
}

inline uint64_t nonzero(const uint32_t *x) {
  uint64_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const Wide v = _mm512_loadu_si512(x + 16 * i);
    word |= static_cast<uint64_t>(_mm512_test_epi32_mask(v, v)) << 16 * i;
  }
  return word;
}
inline uint64_t nonzero(const uint16_t *x) {
  uint64_t word = 0;
  for (int i = 0; i < 2; ++i) {
    const Wide v = _mm512_loadu_si512(x + 32 * i);
    word |= static_cast<uint64_t>(_mm512_test_epi16_mask(v, v)) << 32 * i;
  }
  return word;
}

void scan(const void *x, int bytes, size_t n, uint64_t *words) {
  sparse::typed(x, bytes, [&](auto *from) { sparse::scan_words(from, n, words, [](auto *p) { return nonzero(p); }); });
}

inline void compact16(const uint32_t *x, __mmask16 mask, uint32_t *to) {
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(mask, _mm512_loadu_si512(x)));
}
inline void compact16(const uint16_t *x, __mmask16 mask, uint16_t *to) {
  const Wide v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(x)));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(mask, v)));
}

size_t compact(const void *x, int bytes, size_t n, const uint64_t *words, void *values, size_t room) {
  return sparse::typed(x, bytes, [&](auto *run) {
    return sparse::compact_words(run, n, words, sparse::alike(run, values), room,
                                 [](uint64_t word, auto *from, auto *to) {
                                   for (int i = 0; i < 4; ++i)
                                     compact16(from + 16 * i, part(word, i), to + before(word, i));
                                   return to + before(word, 4);
                                 });
  });
}

size_t expand(const uint64_t *words, size_t n, const float *values, size_t have, float *out) {
  return sparse::expand_words(words, n, values, have, out, [](uint64_t word, const float *from, float *to) {
    for (int i = 0; i < 4; ++i) {
      const __m512 v = _mm512_loadu_ps(from + before(word, i));
      _mm512_storeu_ps(to + 16 * i, _mm512_maskz_expand_ps(part(word, i), v));
    }
    return from + before(word, 4);
  });
}

template <int Kind>
__m512 load16(const void *values, size_t at) {
  if (Kind == SW_F32) return _mm512_loadu_ps(static_cast<const float *>(values) + at);
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(static_cast<const uint16_t *>(values) + at));
  if (Kind == SW_F16) return _mm512_cvtph_ps(v);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

/* A compiler may swap the terms of a sum, and with them which NaN survives: NaNs are done again. */
void add_nans(float *acc, __mmask16 which, __m512 before, __m512 values) {
  alignas(64) float a[16], v[16];
  _mm512_store_ps(a, before);
  _mm512_store_ps(v, values);
  for (int i = 0; i < 16; ++i)
    if (which >> i & 1) {
      sparse::add_nan(a + i, v[i]);
      std::memcpy(acc + i, a + i, sizeof(float));
    }
}

template <int Kind>
size_t accumulate_run(float *acc, size_t n, const uint64_t *words, const void *values, size_t have) {
  size_t used = 0, w = 0;
  for (; w < n / 64 && used + 64 <= have; ++w) {
    const uint64_t word = words[w];
    if (!word) continue;
    for (int i = 0; i < 4; ++i) {
      const __mmask16 mask = part(word, i);
      if (!mask) continue; /* leave its cache line alone */
      float *to = acc + 64 * w + 16 * i;
      const __m512 a = _mm512_loadu_ps(to),
                   v = _mm512_maskz_expand_ps(mask, load16<Kind>(values, used + before(word, i)));
      const __m512 sum = _mm512_mask_add_ps(a, mask, a, v);
      _mm512_storeu_ps(to, sum);
      const __mmask16 nans = _mm512_mask_cmp_ps_mask(mask, sum, sum, _CMP_UNORD_Q);
      if (__builtin_expect(nans, 0)) add_nans(to, nans, a, v);
    }
    used += before(word, 4);
  }
  const void *rest = static_cast<const char *>(values) + used * (Kind == SW_F32 ? 4 : 2);
  return used + sparse::accumulate(acc + 64 * w, n - 64 * w, words + w, rest, Kind, have - used);
}

size_t accumulate(float *acc, size_t n, const uint64_t *words, const void *values, int kind, size_t have) {
  if (kind == SW_F32) return accumulate_run<SW_F32>(acc, n, words, values, have);
  if (kind == SW_F16) return accumulate_run<SW_F16>(acc, n, words, values, have);
  return accumulate_run<SW_BF16>(acc, n, words, values, have);
}

void stream(float *out, const float *x, size_t n) {
  sparse::stream_vectors<16>(out, x, n, [](float *to, const float *p) { _mm512_stream_ps(to, _mm512_loadu_ps(p)); });
}

/* One compression for a whole word, where the CPU has it for bytes (VBMI2). */
__attribute__((target("avx512vbmi2"))) size_t positions_by_bytes(const uint64_t *words, size_t n, uint32_t *out) {
  alignas(64) uint8_t numbers[64];
  for (int i = 0; i < 64; ++i) numbers[i] = static_cast<uint8_t>(i);
  const Wide lanes = _mm512_load_si512(numbers);
  size_t count = 0;
  for (size_t w = 0; w < n; ++w) {
    const uint64_t word = words[w];
    const size_t here = before(word, 4);
    const Wide found = _mm512_maskz_compress_epi8(word, lanes), base = _mm512_set1_epi32(static_cast<int>(64 * w));
    const auto put = [&](size_t i, __m128i some) __attribute__((target("avx512vbmi2"))) {
      _mm512_storeu_si512(out + count + i, _mm512_add_epi32(_mm512_cvtepu8_epi32(some), base));
    };
    put(0, _mm512_castsi512_si128(found));
    if (here > 16) {
      put(16, _mm512_extracti32x4_epi32(found, 1));
      if (here > 32) {
        put(32, _mm512_extracti32x4_epi32(found, 2));
        put(48, _mm512_extracti32x4_epi32(found, 3));
      }
    }
    count += here;
  }
  return count;
}

size_t positions(const uint64_t *words, size_t n, uint32_t *out) {
  const Wide lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  size_t count = 0;
  for (size_t w = 0; w < n; ++w) {
    const uint64_t word = words[w];
    if (!word) continue;
    for (int i = 0; i < 4; ++i) {
      const Wide at = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(64 * w + 16 * i)));
      _mm512_storeu_si512(out + count + before(word, i), _mm512_maskz_compress_epi32(part(word, i), at));
    }
    count += before(word, 4);
  }
  return count;
}

/* Sixteen values at a time become four codes of four values each, as far as those fit into 56 bits. */
void write_rice(BitSink &sink, const uint32_t *v, size_t n, int k) {
  const Wide one = _mm512_set1_epi32(1), low_half = _mm512_set1_epi64(0xFFFFFFFF);
  const Wide low_bits = _mm512_set1_epi32(static_cast<int>((1u << k) - 1));
  const __m128i shift = _mm_cvtsi32_si128(k);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Wide value = _mm512_loadu_si512(v + i), quotient = _mm512_srl_epi32(value, shift);
    const Wide stop = _mm512_add_epi32(quotient, one), length = _mm512_add_epi32(stop, _mm512_set1_epi32(k));
    if (_mm512_cmpgt_epu32_mask(length, _mm512_set1_epi32(14))) {
      sparse::write_rice(sink, v + i, 16, k);
      continue;
    }
    const Wide unary = _mm512_sub_epi32(_mm512_sllv_epi32(one, quotient), one);
    const Wide code = _mm512_or_si512(unary, _mm512_sllv_epi32(_mm512_and_si512(value, low_bits), stop));
    const Wide even = _mm512_and_si512(length, low_half);
    const Wide pair =
        _mm512_or_si512(_mm512_and_si512(code, low_half), _mm512_sllv_epi64(_mm512_srli_epi64(code, 32), even));
    const Wide pair_length = _mm512_add_epi64(even, _mm512_srli_epi64(length, 32));
    const Wide four = _mm512_or_si512(pair, _mm512_sllv_epi64(_mm512_unpackhi_epi64(pair, pair), pair_length));
    const Wide four_length = _mm512_add_epi64(pair_length, _mm512_unpackhi_epi64(pair_length, pair_length));
    alignas(64) uint64_t codes[8], lengths[8];
    _mm512_store_si512(codes, four);
    _mm512_store_si512(lengths, four_length);
    for (int j = 0; j < 8; j += 2) sparse::put(sink, codes[j], static_cast<unsigned>(lengths[j]));
  }
  sparse::write_rice(sink, v + i, n - i, k);
}

const SparseOps kAvx512 = {scan,          compact,       expand,    accumulate,          sparse::divide, stream,
                           sparse::count, sparse::facts, positions, sparse::sum_shifted, write_rice};
const SparseOps kVbmi2 = {scan,      compact,       expand,        accumulate,         sparse::divide,
                          stream,    sparse::count, sparse::facts, positions_by_bytes, sparse::sum_shifted,
                          write_rice};

} // namespace

const SparseOps *sparse_avx512_ops() {
  static const bool vbmi2 = __builtin_cpu_supports("avx512vbmi2");
  return vbmi2 ? &kVbmi2 : &kAvx512;
}

} // namespace sw

#else

namespace sw {
const SparseOps *sparse_avx512_ops() { return nullptr; }
} // namespace sw

#endif
