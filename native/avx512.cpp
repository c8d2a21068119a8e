/* The hot path for 512-bit vectors with byte permutes (VBMI): Ice Lake, Sapphire Rapids, Zen 4.
 *
 * As avx2.cpp, with runs of 64 coordinates (index bits e5..e0) in two registers. What gains nothing
 * from wider vectors is left to the 256-bit code. */
#include "generic.h"

#if defined(__AVX512BW__) && defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#include "planes256.h"

namespace sw {
namespace {

using Wide = __m512i;

inline Wide load512(const void *p) { return _mm512_loadu_si512(p); }
inline void store512(void *p, Wide v) { _mm512_storeu_si512(p, v); }

inline void butterfly(Wide &a, Wide &b) {
  const Wide s = _mm512_add_epi16(a, b);
  b = _mm512_sub_epi16(a, b);
  a = s;
}
/* Register bit r and lane bits (l2 l1 l0) become l2 and (l1 l0 r). */
inline void trade16(Wide &a, Wide &b) {
  const Wide lo = _mm512_unpacklo_epi16(a, b);
  b = _mm512_unpackhi_epi16(a, b);
  a = lo;
}
/* Register bit r and 128-bit lane bits (h1 h0) become h1 and (r h0). */
inline void trade256(Wide &a, Wide &b) {
  const Wide lo = _mm512_shuffle_i64x2(a, b, 0x44);
  b = _mm512_shuffle_i64x2(a, b, 0xEE);
  a = lo;
}
/* Register bit r and 128-bit lane bits (h1 h0) become h0 and (r h1). */
inline void trade128(Wide &a, Wide &b) {
  const Wide lo = _mm512_shuffle_i64x2(a, b, 0x88);
  b = _mm512_shuffle_i64x2(a, b, 0xDD);
  a = lo;
}
template <int R>
inline void butterflies(Wide (&v)[R]) {
  for (int h = 1; h < R; h *= 2)
    for (int i = 0; i < R; ++i)
      if (!(i & h)) butterfly(v[i], v[i + h]);
}

/* Lane orders of a run of 64 while it loads and when it quantizes: see Intake and finish_run. */
size_t load_order64(size_t i) { return (i >> 4 & 1) << 5 | (i & 15) << 1 | i >> 5; }
size_t quantize_order64(size_t i) {
  const size_t e5 = i >> 5, e4 = i >> 4 & 1, e3 = i >> 3 & 1, e2 = i >> 2 & 1;
  return e2 << 5 | e3 << 4 | e5 << 3 | e4 << 2 | (i & 3);
}

/* The 256-bit code that encode falls back to rotates in int32 and reads neither of the two. */
void draw(Patterns &p, const sw_keys &keys, size_t n) {
  draw_patterns(p, keys, n);
  for (size_t run = 0; run + 64 <= n; run += 64)
    for (size_t i = 0; i < 64; ++i) {
      p.paired_sign[run + load_order64(i)] = p.sign[run + i] ? -1 : 1;
      p.paired_noise[run + quantize_order64(i)] = p.noise[run + i];
    }
}

double sum_squares(const float *x, size_t n) {
  __m512d fold[2] = {};
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    fetch(x + kAhead + i);
    for (int l = 0; l < 2; ++l) { /* exact squares: fused or not makes no difference */
      const __m512d v = _mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8 * l));
      fold[l] = _mm512_fmadd_pd(v, v, fold[l]);
    }
  }
  if (i < n) return generic::sum_squares(x, n);
  const __m512d eight = _mm512_add_pd(fold[0], fold[1]);
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

void to_float(int kind, const void *src, size_t n, float *dst) { avx2_ops()->to_float(kind, src, n, dst); }

struct Intake {
  __m512 gain;
  const float *x;
  const Patterns *patterns;
  Wide flip; /* of the dither, for this block */
  Wide squares = _mm512_setzero_si512();

  Wide half(const float *from, const int32_t *dither) const {
    const Wide fixed = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from), gain));
    return _mm512_add_epi32(fixed, _mm512_xor_si512(load512(dither), flip));
  }
  /* Coordinates e4 = `e4` of the run at i, in lanes (e3 e2 | e1 e0 e5). */
  Wide operator()(size_t i, int e4) {
    const size_t at = i + 16 * e4;
    fetch(x + kAhead + at);
    fetch(x + kAhead + at + 32);
    const Wide low = half(x + at, patterns->half_dither + at);
    const Wide high = half(x + at + 32, patterns->half_dither + at + 32);
    const Wide units = _mm512_mask_mov_epi16(_mm512_srli_epi32(low, 16), 0xAAAAAAAA, high);
    squares = _mm512_dpwssds_epi32(squares, units, units); /* saturates, so it cannot come out small */
    return _mm512_mullo_epi16(units, load512(patterns->paired_sign + i + 32 * e4));
  }
};

template <int R>
inline void strided(int16_t *y, size_t n, size_t stride) {
  for (size_t base = 0; base < n; base += R * stride)
    for (size_t o = base; o < base + stride; o += 32) {
      Wide v[R];
      for (int r = 0; r < R; ++r) v[r] = load512(y + o + r * stride);
      butterflies(v);
      for (int r = 0; r < R; ++r) store512(y + o + r * stride, v[r]);
    }
}

/* All stages above 256, while coordinates come in. False if they exceed the terms. */
template <int L>
bool take_in(Intake &intake, int16_t *y, int16_t half, int64_t square_limit) {
  constexpr int R = 1 << (L - 8 < 3 ? L - 8 : 3);
  constexpr size_t n = size_t{1} << L, stride = n / R;
  for (size_t o = 0; o < stride; o += 64) {
    for (int e4 = 0; e4 < 2; ++e4) {
      Wide v[R];
      for (int r = 0; r < R; ++r) v[r] = intake(o + r * stride, e4);
      /* Half the range on coordinate 0: the transform adds it to every coordinate. */
      if (o == 0 && e4 == 0) v[0] = _mm512_add_epi16(v[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(half & 0xFFFF)));
      butterflies(v);
      for (int r = 0; r < R; ++r) store512(y + o + r * stride + 32 * e4, v[r]);
    }
  }
  alignas(64) int32_t lanes[16];
  store512(lanes, intake.squares);
  int64_t squares = 0;
  for (int32_t lane : lanes) squares += lane;
  if (L == 12) strided<2>(y, n, 256);
  return squares <= square_limit;
}

/* The last six stages of a run; lanes end as (e3 e5 | e4 e1 e0), registers as e2. */
inline void finish_run(Wide &a, Wide &b) {
  butterfly(a, b); /* e4 */
  trade16(a, b);
  butterfly(a, b); /* e1 */
  trade16(a, b);
  butterfly(a, b); /* e0 */
  trade16(a, b);
  butterfly(a, b); /* e5 */
  trade256(a, b);
  butterfly(a, b); /* e3 */
  trade128(a, b);
  butterfly(a, b); /* e2 */
}

struct Evenly { /* table = lattice */
  __m128i f, rest;
  explicit Evenly(int fraction_bits)
      : f(_mm_cvtsi32_si128(fraction_bits)), rest(_mm_cvtsi32_si128(16 - fraction_bits)) {}
  Wide operator()(Wide a, Wide b, Wide noise_a, Wide noise_b) const {
    a = _mm512_srl_epi16(_mm512_add_epi16(a, _mm512_srl_epi16(noise_a, rest)), f);
    b = _mm512_srl_epi16(_mm512_add_epi16(b, _mm512_srl_epi16(noise_b, rest)), f);
    return _mm512_packus_epi16(a, b);
  }
};

struct ByTable {  /* fraction_bits = 8, at most 32 entries */
  Wide above;     /* bytes by lattice cell: the index + 1 */
  Wide gap, next; /* words by index + 1, modulo 32: the gap and the next value, in units */
  explicit ByTable(const uint8_t *bytes64)
      : above(_mm512_add_epi8(load512(bytes64), _mm512_set1_epi8(1))), gap(words(bytes64 + 128)),
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

template <class Quantize>
void quantize(const EncodeJob &job, int16_t *y, size_t n, const Quantize &quantizer) {
  const sw_lattice &lattice = job.scheme->lattices[job.cls];
  const Wide top = _mm512_set1_epi16(static_cast<int16_t>(2 * half_range(lattice))), zero = _mm512_setzero_si512();
  const Wide angle = _mm512_set1_epi16(static_cast<int16_t>(turn(*job.keys, job.block)));
  /* Double words stand as (e3 e5 | e2 e4): bring them into the order (e5 e4 | e3 e2). */
  const Wide in_order = _mm512_setr_epi32(0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15);
  const uint16_t *noise = job.patterns->paired_noise;
  const auto position = [&](Wide v) { return _mm512_min_epi16(_mm512_max_epi16(v, zero), top); };
  for (size_t at = 0; at < n; at += 256) {
    Wide a[4], b[4];
    for (int k = 0; k < 4; ++k) {
      a[k] = load512(y + at + 64 * k);
      b[k] = load512(y + at + 64 * k + 32);
    }
    butterflies(a); /* e6, e7 */
    butterflies(b);
    for (int k = 0; k < 4; ++k) {
      finish_run(a[k], b[k]);
      const size_t i = at + 64 * k;
      const Wide index = quantizer(position(a[k]), position(b[k]), _mm512_add_epi16(load512(noise + i), angle),
                                   _mm512_add_epi16(load512(noise + i + 32), angle));
      store512(job.indices + i, _mm512_permutexvar_epi32(in_order, index));
    }
  }
}

/* 128 lanes, at most 255 each, through seven stages: below 2^15. */
inline void transform128(const Wide (&v)[2], int16_t *y) {
  Wide a[2], b[2];
  const Wide zero = _mm512_setzero_si512();
  for (int k = 0; k < 2; ++k) {
    a[k] = _mm512_unpacklo_epi8(v[k], zero); /* registers e3, lanes (e5 e4 | e2 e1 e0) */
    b[k] = _mm512_unpackhi_epi8(v[k], zero);
    for (int stage = 0; stage < 4; ++stage) { /* e3, e2, e1, e0, and back to the start */
      butterfly(a[k], b[k]);
      trade16(a[k], b[k]);
    }
    trade256(a[k], b[k]);
    butterfly(a[k], b[k]); /* e5 */
    trade128(a[k], b[k]);
    butterfly(a[k], b[k]); /* e4; now registers e4, lanes (e5 e3 | e2 e1 e0) */
  }
  butterflies(a); /* e6 */
  butterflies(b);
  for (int k = 0; k < 2; ++k) {
    store(y + 64 * k, _mm512_castsi512_si256(a[k]));
    store(y + 64 * k + 16, _mm512_castsi512_si256(b[k]));
    store(y + 64 * k + 32, _mm512_extracti64x4_epi64(a[k], 1));
    store(y + 64 * k + 48, _mm512_extracti64x4_epi64(b[k], 1));
  }
}

/* Rows of 128 after seven stages to (2 * sum - center) * gain * sign, or x minus that. With Split,
 * `high` counts 128-fold. The center only moves coordinate 0 of the transform. */
template <int L, bool Split>
void finish_floats(const int16_t *y, const int16_t *high, int64_t center, float gain, const uint32_t *sign,
                   const float *x, float *out) {
  constexpr size_t n = size_t{1} << L;
  constexpr int R = 1 << (L - 7);
  alignas(64) float value[n];
  const __m512 twice = _mm512_set1_ps(2.0f * gain);
  for (size_t o = 0; o < 128; o += 16) {
    Wide v[R];
    for (int r = 0; r < R; ++r) {
      v[r] = _mm512_cvtepi16_epi32(load(y + 128 * r + o));
      if (Split) v[r] = _mm512_add_epi32(v[r], _mm512_slli_epi32(_mm512_cvtepi16_epi32(load(high + 128 * r + o)), 7));
    }
    for (int h = 1; h < R; h *= 2)
      for (int i = 0; i < R; ++i)
        if (!(i & h)) {
          const Wide s = _mm512_add_epi32(v[i], v[i + h]);
          v[i + h] = _mm512_sub_epi32(v[i], v[i + h]);
          v[i] = s;
        }
    if (o == 0) v[0] = _mm512_mask_sub_epi32(v[0], 1, v[0], _mm512_set1_epi32(static_cast<int32_t>(center << L >> 1)));
    for (int r = 0; r < R; ++r) {
      const size_t at = 128 * r + o;
      const __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(v[r]), twice);
      const Wide flipped = _mm512_xor_si512(_mm512_castps_si512(f), load512(sign + at));
      if (x) /* x may be out: these 16 are read before they are written */
        _mm512_storeu_ps(out + at, _mm512_sub_ps(_mm512_loadu_ps(x + at), _mm512_castsi512_ps(flipped)));
      else
        store512(value + at, flipped);
    }
  }
  if (x) return;
  if (reinterpret_cast<uintptr_t>(out) % 16) {
    std::memcpy(out, value, sizeof value);
  } else { /* past the caches: a tensor is read much later than it is written. NumPy aligns to 16. */
    for (size_t i = 0; i < n; i += 4) _mm_stream_ps(out + i, _mm_load_ps(value + i));
  }
}

template <int L>
void bytes_to_floats(const uint8_t *lanes, int64_t center, float gain, const uint32_t *sign, const float *x,
                     float *out) {
  alignas(64) int16_t y[size_t{1} << L];
  for (size_t at = 0; at < size_t{1} << L; at += 128)
    transform128({load512(lanes + at), load512(lanes + at + 64)}, y + at);
  finish_floats<L, false>(y, nullptr, center, gain, sign, x, out);
}

template <int L>
void words_to_floats(const uint8_t *lanes, int64_t center, float gain, const uint32_t *sign, float *out) {
  alignas(64) int16_t y[size_t{1} << L], high[size_t{1} << L];
  const Wide low7 = _mm512_set1_epi16(127);
  for (size_t at = 0; at < size_t{1} << L; at += 128) {
    Wide low[2], top[2];
    for (int k = 0; k < 2; ++k) {
      const Wide a = load512(lanes + 2 * (at + 64 * k)), b = load512(lanes + 2 * (at + 64 * k) + 64);
      const auto bytes = [](Wide p, Wide q) {
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(p)), _mm512_cvtepi16_epi8(q), 1);
      };
      low[k] = bytes(_mm512_and_si512(a, low7), _mm512_and_si512(b, low7));
      top[k] = bytes(_mm512_srli_epi16(a, 7), _mm512_srli_epi16(b, 7));
    }
    transform128(low, y + at);
    transform128(top, high + at);
  }
  finish_floats<L, true>(y, high, center, gain, sign, nullptr, out);
}

void decode(const DecodeJob &job) {
  const sw_lattice &lattice = job.scheme->lattices[job.cls];
  const bool fast = job.scheme->rotate && job.scale >= kTinyScale && lattice.lane_bits <= 15 && job.log_size <= 10;
  const int64_t center = int64_t{job.count} * lattice.granularity;
  const float gain = decode_gain(*job.scheme, job.cls, job.log_size, job.scale, job.count);
  const bool done = fast && with_size(job.log_size, [&](auto log_size) {
                      if (job.lane_bytes == 1)
                        bytes_to_floats<log_size>(job.lanes, center, gain, job.patterns->sign, nullptr, job.out);
                      else
                        words_to_floats<log_size>(job.lanes, center, gain, job.patterns->sign, job.out);
                    });
  if (!done) avx2_ops()->decode(job);
}

template <int L>
Done encode_sized(const EncodeJob &job) {
  const sw_scheme &scheme = *job.scheme;
  const sw_lattice &lattice = scheme.lattices[job.cls];
  const uint8_t *bytes64 = scheme.tables[job.cls][job.width].bytes64;
  constexpr size_t n = size_t{1} << L;
  alignas(64) int16_t y[n];
  Intake intake{_mm512_set1_ps(encode_gain(scheme, job.cls, L, job.scale)), job.x, job.patterns,
                _mm512_set1_epi32(static_cast<int32_t>(flips(*job.keys, job.block) >> 16))};
  if (!take_in<L>(intake, y, static_cast<int16_t>(half_range(lattice)), scheme.square_limit[L][job.cls]))
    return Done::beyond_terms;
  const bool even = is_even(lattice, job.width);
  if (even)
    quantize(job, y, n, Evenly(lattice.fraction_bits));
  else
    quantize(job, y, n, ByTable(bytes64));
  pack_indices(job, n);
  if (!job.residual) return Done::yes;
  if (!even) {
    const Wide values = load512(bytes64 + 64);
    for (size_t i = 0; i < n; i += 64)
      store512(job.indices + i, _mm512_permutexvar_epi8(load512(job.indices + i), values));
  }
  const float gain = decode_gain(scheme, job.cls, L, job.scale, 1);
  bytes_to_floats<L>(job.indices, lattice.granularity, gain, job.patterns->sign, job.x, job.residual);
  return Done::yes;
}

Done encode(const EncodeJob &job) {
  const sw_lattice &lattice = job.scheme->lattices[job.cls];
  const bool small = lattice.fraction_bits == 8 && job.width <= 5 && job.scheme->tables[job.cls][job.width].bytes64;
  Done done = Done::yes;
  const bool fast = job.scheme->rotate && job.scale >= kTinyScale && lattice.rotation_bits == 16 &&
                    lattice.granularity <= 255 && (is_even(lattice, job.width) || small) &&
                    with_size(job.log_size, [&](auto log_size) { done = encode_sized<log_size>(job); });
  return fast ? done : avx2_ops()->encode(job);
}

struct Lookup256 {
  Vec table;
  Vec operator()(Vec index) const { return _mm256_permutexvar_epi8(index, table); }
};

void add(const AddJob &job) {
  add_payloads(job, [](auto, const uint8_t *bytes) { return Lookup256{load(bytes)}; });
}

const Ops kAvx512 = {"avx512", draw_signs, draw, sum_squares, to_float, encode, decode, add, pack, unpack};

} // namespace

const Ops *avx512_ops() { return &kAvx512; }

} // namespace sw

#else

namespace sw {
const Ops *avx512_ops() { return nullptr; }
} // namespace sw

#endif
