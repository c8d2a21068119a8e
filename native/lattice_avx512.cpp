/* The lattice kernels for 512-bit vectors with byte permutes (VBMI): Ice Lake, Sapphire Rapids, Zen 4.
 *
 * What gains nothing from wider vectors is left to the 256-bit code. */
#include "lattice_generic.h"

#if defined(__AVX512BW__) && defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#include "lattice_encode.h"
#include "wide512.h"

namespace sw {
namespace {

void to_float(int kind, const void *src, size_t n, float *dst) { avx2_ops()->to_float(kind, src, n, dst); }

struct ByTable512 { /* fraction_bits = 8, at most 32 entries */
  Wide above;       /* bytes by lattice cell: the index + 1 */
  Wide gap, next;   /* words by index + 1, modulo 32: the gap and the next value, in units */
  explicit ByTable512(const uint8_t *bytes64)
      : above(_mm512_add_epi8(_mm512_loadu_si512(bytes64), _mm512_set1_epi8(1))), gap(words(bytes64 + 128)),
        next(words(bytes64 + 192)) {}
  static Wide words(const uint8_t *row) {
    const Wide wide = _mm512_slli_epi16(_mm512_cvtepu8_epi16(load(row)), 8);
    const Wide one_back = _mm512_sub_epi16(_mm512_load_si512(kCount), _mm512_set1_epi16(1));
    return _mm512_permutexvar_epi16(one_back, wide);
  }
  alignas(64) static constexpr uint16_t kCount[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  Wide operator()(Wide a, Wide b, Wide noise_a, Wide noise_b) const {
    return _mm512_packus_epi16(index(a, noise_a), index(b, noise_b));
  }
  Wide index(Wide position, Wide noise) const {
    const Wide cell = _mm512_srli_epi16(position, 8);
    const Wide up = _mm512_maskz_permutexvar_epi8(0x5555555555555555, cell, above);
    const Wide moved = _mm512_add_epi16(position, _mm512_mulhi_epu16(noise, _mm512_permutexvar_epi16(up, gap)));
    const __mmask32 stays = _mm512_cmplt_epi16_mask(moved, _mm512_permutexvar_epi16(up, next));
    return _mm512_mask_sub_epi16(up, stays, up, _mm512_set1_epi16(1));
  }
};

/* Whether a block is within its terms, by the squares of its units; and the largest unit. */
struct Check512 {
  Wide peak = _mm512_setzero_si512(), squares = _mm512_setzero_si512();

  void add(Wide units) {
    peak = _mm512_max_epu16(peak, _mm512_abs_epi16(units));
    squares = _mm512_dpwssds_epi32(squares, units, units); /* saturates: it cannot come out small */
  }
  void fold() {}
  int64_t total() const { return sum_of_words(squares); }
  int64_t largest_square() const {
    const Vec half = _mm256_max_epu16(_mm512_castsi512_si256(peak), _mm512_extracti64x4_epi64(peak, 1));
    return square_of_largest(half);
  }
  bool within(int64_t square_limit) const { return total() <= square_limit; }
};

struct Lookup512 {
  Wide table;
  explicit Lookup512(const uint8_t *bytes) : table(_mm512_loadu_si512(bytes)) {}
  Wide operator()(Wide index) const { return _mm512_permutexvar_epi8(index, table); }
};

struct V512 {
  using Int = Wide;
  using Float = __m512;
  using Double = __m512d;
  using Check = Check512;
  using Values = Lookup512;

  static Int load(const void *p) { return _mm512_loadu_si512(p); }
  static void store(void *p, Int v) { _mm512_storeu_si512(p, v); }
  static Int set16(int32_t v) { return _mm512_set1_epi16(static_cast<int16_t>(v)); }
  static Int set32(int32_t v) { return _mm512_set1_epi32(v); }
  static Int only_first(int32_t v) { return _mm512_zextsi128_si512(_mm_cvtsi32_si128(v)); }
  static Int add16(Int a, Int b) { return _mm512_add_epi16(a, b); }
  static Int sub16(Int a, Int b) { return _mm512_sub_epi16(a, b); }
  static Int add_saturated16(Int a, Int b) { return _mm512_adds_epi16(a, b); }
  static Int mulhrs16(Int a, Int b) { return _mm512_mulhrs_epi16(a, b); }
  static Int min16(Int a, Int b) { return _mm512_min_epi16(a, b); }
  static Int max16(Int a, Int b) { return _mm512_max_epi16(a, b); }
  static Int srl16(Int v, __m128i count) { return _mm512_srl_epi16(v, count); }
  static Int packus16(Int a, Int b) { return _mm512_packus_epi16(a, b); }
  static Int flip16(Int v, Int sign) { return _mm512_mullo_epi16(v, sign); }
  static Int add32(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int sub32(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  static Int madd16(Int a, Int b) { return _mm512_madd_epi16(a, b); }
  static Int xor_(Int a, Int b) { return _mm512_xor_si512(a, b); }

  static Float set_floats(float v) { return _mm512_set1_ps(v); }
  static Float load_floats(const float *p) { return _mm512_loadu_ps(p); }
  static void store_floats(float *p, Float v) { _mm512_storeu_ps(p, v); }
  static void stream_floats(float *p, Float v) { _mm512_stream_ps(p, v); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float xor_(Float a, Int b) { return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), b)); }
  static Float to_floats(Int v) { return _mm512_cvtepi32_ps(v); }
  static Int to_int(Float v) { return _mm512_cvtps_epi32(v); }

  static Double add_square(Double sum, const float *p) {
    const Double v = _mm512_cvtps_pd(_mm256_loadu_ps(p));
    return _mm512_fmadd_pd(v, v, sum);
  }
  static double sum(Double eight) {
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
  }

  /* The register bit r and lane bits (l2 l1 l0) become l2 and (l1 l0 r). */
  static void trade16(Int &a, Int &b) {
    const Int lo = _mm512_unpacklo_epi16(a, b);
    b = _mm512_unpackhi_epi16(a, b);
    a = lo;
  }
  /* The same of 32-bit lanes (l1 l0): l1 and (l0 r). */
  static void trade32(Int &a, Int &b) {
    const Int lo = _mm512_unpacklo_epi32(a, b);
    b = _mm512_unpackhi_epi32(a, b);
    a = lo;
  }
  /* The register bit r and the bits (h1 h0) that choose a 128-bit part become h1 and (r h0). */
  static void trade256(Int &a, Int &b) {
    const Int lo = _mm512_shuffle_i64x2(a, b, 0x44);
    b = _mm512_shuffle_i64x2(a, b, 0xEE);
    a = lo;
  }
  /* The register bit r and the bits (h1 h0) that choose a 128-bit part become h0 and (r h1). */
  static void trade128(Int &a, Int &b) {
    const Int lo = _mm512_shuffle_i64x2(a, b, 0x88);
    b = _mm512_shuffle_i64x2(a, b, 0xDD);
    a = lo;
  }
  /* The upper halves of 32-bit lanes: of `low` in even lanes, of `high` in odd ones. */
  static Int upper_halves(Int low, Int high) {
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(low, 16), 0xAAAAAAAA, high);
  }

  /* Where coordinate i of a run stands while it loads, lanes (e3 e2 | e1 e0 e5), and when it quantizes,
   * (e3 e5 | e4 e1 e0). */
  static size_t load_order(size_t i) { return (i >> 4 & 1) << 5 | (i & 15) << 1 | i >> 5; }
  static size_t quantize_order(size_t i) {
    const size_t e5 = i >> 5, e4 = i >> 4 & 1, e3 = i >> 3 & 1, e2 = i >> 2 & 1;
    return e2 << 5 | e3 << 4 | e5 << 3 | e4 << 2 | (i & 3);
  }
  /* Double words stand as (e3 e5 | e2 e4): bring them into the order (e5 e4 | e3 e2). */
  static Int in_order(Int index) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15), index);
  }

  template <class F>
  static void with_table(int, int, const sw_table &table, const F &f) {
    f(ByTable512(table.bytes64));
  }

  static void widen8(Int v, Int &a, Int &b) {
    a = _mm512_unpacklo_epi8(v, _mm512_setzero_si512());
    b = _mm512_unpackhi_epi8(v, _mm512_setzero_si512());
  }
  static Int widen16(const int16_t *p) { return _mm512_cvtepi16_epi32(sw::load(p)); }
  /* The register bit is e4, lanes are (e5 e3 | e2 e1 e0). */
  static void store_run(int16_t *y, Int a, Int b) {
    sw::store(y, _mm512_castsi512_si256(a));
    sw::store(y + 16, _mm512_castsi512_si256(b));
    sw::store(y + 32, _mm512_extracti64x4_epi64(a, 1));
    sw::store(y + 48, _mm512_extracti64x4_epi64(b, 1));
  }
  /* Words that stand as (e4 e3 | e2 e1 e0), as (e3 e4 | e0 e2 e1). */
  static Int pair_words(Int v) {
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return _mm512_shuffle_epi8(_mm512_shuffle_i64x2(v, v, 0xD8), _mm512_broadcast_i32x4(order));
  }
};

void decode(const DecodeJob &job) {
  if (!Decoder<V512>::decode(job, 10)) avx2_ops()->decode(job);
}

Done encode(const EncodeJob &job) {
  const sw_lattice &lattice = job.scheme->lattices[job.cls];
  const bool small = fits_table(lattice) && job.width <= 5 && job.scheme->tables[job.cls][job.width].bytes64;
  Done done = Done::yes;
  const bool fast = job.scheme->rotate && job.scale >= kTinyScale && lattice.rotation_bits == 16 &&
                    lattice.granularity <= 255 && (is_even(lattice, job.width) || small) &&
                    with_size(job.log_size, [&](auto log_size) { done = Encoder<V512>::encode<log_size>(job); });
  return fast ? done : avx2_ops()->encode(job); /* which then rotates in int32 and reads no paired patterns */
}

struct Lookup256 {
  Vec table;
  Vec operator()(Vec index) const { return _mm256_permutexvar_epi8(index, table); }
};

void add(const AddJob &job) {
  add_payloads(job, [](auto, const uint8_t *bytes) { return Lookup256{load(bytes)}; });
}

const Ops kAvx512 = {
    "avx512", draw_signs, Encoder<V512>::draw_patterns, Encoder<V512>::sum_squares, to_float, encode, decode, add,
    pack,     unpack};

} // namespace

const Ops *avx512_ops() { return &kAvx512; }

} // namespace sw

#else

namespace sw {
const Ops *avx512_ops() { return nullptr; }
} // namespace sw

#endif
