/* The hot path for 256-bit vectors: blocks of 256 to 4096 coordinates that rotate in int16. */
#include "generic.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "wide256.h"

namespace sw {
namespace {

double sum_squares(const float *x, size_t n) {
  __m256d fold[4] = {};
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    fetch(x + kAhead + i);
    for (int l = 0; l < 4; ++l) {
      /* The square of a float32 is exact in float64, so the fused form rounds just as the plain one. */
      const __m256d v = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * l));
      fold[l] = _mm256_fmadd_pd(v, v, fold[l]);
    }
  }
  if (i < n) {
    float rest[16] = {};
    std::memcpy(rest, x + i, (n - i) * sizeof(float));
    for (int l = 0; l < 4; ++l) {
      const __m256d v = _mm256_cvtps_pd(_mm_loadu_ps(rest + 4 * l));
      fold[l] = _mm256_fmadd_pd(v, v, fold[l]);
    }
  }
  const __m256d four = _mm256_add_pd(_mm256_add_pd(fold[0], fold[2]), _mm256_add_pd(fold[1], fold[3]));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

void to_float(int kind, const void *src, size_t n, float *dst) {
  if (kind != SW_F16) return generic::to_float(kind, src, n, dst);
  const uint16_t *from = static_cast<const uint16_t *>(src);
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i))));
  if (i < n) generic::to_float(kind, from + i, n - i, dst + i);
}

/* Float coordinates to dithered integers, and what the terms' check needs of them. */
struct Intake {
  __m256 gain;
  const float *x;
  const Patterns *patterns;
  Vec flip; /* of the dither, for this block */
  Vec peak = _mm256_setzero_si256(), squares = _mm256_setzero_si256();

  Vec half(const float *from, const int32_t *dither) const {
    const Vec fixed = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from), gain));
    return _mm256_add_epi32(fixed, _mm256_xor_si256(load(dither), flip));
  }
  /* Coordinates e3 = `e3` of the run at i, in lanes (e2 | e1 e0 e4). */
  Vec operator()(size_t i, int e3) {
    const size_t at = i + 8 * e3;
    fetch(x + kAhead + i + 16 * e3);
    const Vec low = half(x + at, patterns->half_dither + at);
    const Vec high = half(x + at + 16, patterns->half_dither + at + 16);
    const Vec units = _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xAA);
    peak = _mm256_max_epu16(peak, _mm256_abs_epi16(units));
    squares = _mm256_add_epi32(squares, _mm256_madd_epi16(units, units));
    return _mm256_sign_epi16(units, load(patterns->paired_sign + i + 16 * e3));
  }
};

inline uint32_t peak_of(Vec v) {
  alignas(32) uint16_t lane[16];
  store(lane, v);
  uint32_t top = 0;
  for (uint16_t l : lane) top = l > top ? l : top;
  return top;
}
inline int64_t total_of(Vec v) {
  alignas(32) uint32_t lane[8];
  store(lane, v);
  int64_t sum = 0;
  for (uint32_t l : lane) sum += l;
  return sum;
}

/* Rows at distance `stride`: R at a time through log2(R) stages. */
template <int R>
inline void strided(int16_t *y, size_t n, size_t stride) {
  for (size_t base = 0; base < n; base += R * stride)
    for (size_t o = base; o < base + stride; o += 16) {
      Vec v[R];
      for (int r = 0; r < R; ++r) v[r] = load(y + o + r * stride);
      butterflies(v);
      for (int r = 0; r < R; ++r) store(y + o + r * stride, v[r]);
    }
}

/* All stages above 128, while coordinates come in. False if they exceed the terms. */
template <int L>
bool take_in(Intake &intake, int16_t *y, int16_t half, int64_t square_limit) {
  constexpr int R = L == 8 ? 2 : L == 9 ? 4 : 8;
  constexpr size_t n = size_t{1} << L, stride = n / R;
  int64_t squares = 0;
  for (size_t o = 0; o < stride; o += 32) {
    for (int e3 = 0; e3 < 2; ++e3) {
      Vec v[R];
      for (int r = 0; r < R; ++r) v[r] = intake(o + r * stride, e3);
      /* Half the range on coordinate 0: the transform adds it to every coordinate. */
      if (o == 0 && e3 == 0) v[0] = _mm256_add_epi16(v[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(half & 0xFFFF)));
      butterflies(v);
      for (int r = 0; r < R; ++r) store(y + o + r * stride + 16 * e3, v[r]);
    }
    if (o % 128 == 96) { /* if none of them alone exceeds the limit, 32-bit lanes hold 1024 squares */
      squares += total_of(intake.squares);
      intake.squares = _mm256_setzero_si256();
    }
  }
  const int64_t peak = peak_of(intake.peak);
  if (peak * peak > square_limit || squares > square_limit) return false;
  if (L == 11) strided<2>(y, n, 128);
  if (L == 12) strided<4>(y, n, 128);
  return true;
}

/* The last five stages of a run; lanes end as (e4 | e3 e1 e0), registers as e2. */
inline void finish_run(Vec &a, Vec &b) {
  butterfly(a, b); /* e3 */
  trade16(a, b);
  butterfly(a, b); /* e1 */
  trade16(a, b);
  butterfly(a, b); /* e0 */
  trade16(a, b);
  butterfly(a, b); /* e4 */
  trade128(a, b);
  butterfly(a, b); /* e2 */
}

struct Evenly { /* table = lattice */
  int fraction_bits;
  Vec operator()(Vec a, Vec b, Vec noise_a, Vec noise_b) const {
    const __m128i f = _mm_cvtsi32_si128(fraction_bits), rest = _mm_cvtsi32_si128(16 - fraction_bits);
    a = _mm256_srl_epi16(_mm256_add_epi16(a, _mm256_srl_epi16(noise_a, rest)), f);
    b = _mm256_srl_epi16(_mm256_add_epi16(b, _mm256_srl_epi16(noise_b, rest)), f);
    return _mm256_packus_epi16(a, b);
  }
};

/* Cells: sixteenths of the lookup by lattice cell; Entries: of those by index. fraction_bits = 8. */
template <int Cells, int Entries>
struct ByTable {
  Lookup<Cells> lower;
  Lookup<Entries> gap, next;
  explicit ByTable(const sw_table &t) : lower(t.bytes64), gap(t.bytes64 + 128), next(t.bytes64 + 192) {}
  Vec operator()(Vec a, Vec b, Vec noise_a, Vec noise_b) const {
    const Vec zero = _mm256_setzero_si256();
    const Vec index = lower(_mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)));
    const Vec width = gap(index), upper = next(index);
    const Vec stay_a = stays(a, noise_a, _mm256_unpacklo_epi8(zero, width), _mm256_unpacklo_epi8(zero, upper));
    const Vec stay_b = stays(b, noise_b, _mm256_unpackhi_epi8(zero, width), _mm256_unpackhi_epi8(zero, upper));
    const Vec up = _mm256_add_epi8(index, _mm256_set1_epi8(1));
    return _mm256_add_epi8(up, _mm256_packs_epi16(stay_a, stay_b));
  }
  /* -1 where the noise does not carry a position to the next value. */
  static Vec stays(Vec position, Vec noise, Vec gap, Vec upper) {
    return _mm256_cmpgt_epi16(upper, _mm256_add_epi16(position, _mm256_mulhi_epu16(noise, gap)));
  }
};

template <class Quantize>
void quantize(const EncodeJob &job, int16_t *y, size_t n, const Quantize &quantizer) {
  const sw_lattice &lattice = job.scheme->lattices[job.cls];
  const Vec top = _mm256_set1_epi16(static_cast<int16_t>(2 * half_range(lattice))), zero = _mm256_setzero_si256();
  const Vec angle = _mm256_set1_epi16(static_cast<int16_t>(turn(*job.keys, job.block)));
  const uint16_t *noise = job.patterns->paired_noise;
  const auto position = [&](Vec v) { return _mm256_min_epi16(_mm256_max_epi16(v, zero), top); };
  for (size_t at = 0; at < n; at += 128) {
    Vec a[4], b[4];
    for (int k = 0; k < 4; ++k) {
      a[k] = load(y + at + 32 * k);
      b[k] = load(y + at + 32 * k + 16);
    }
    butterflies(a); /* e5, e6 */
    butterflies(b);
    for (int k = 0; k < 4; ++k) {
      finish_run(a[k], b[k]);
      const size_t i = at + 32 * k;
      const Vec index = quantizer(position(a[k]), position(b[k]), _mm256_add_epi16(load(noise + i), angle),
                                  _mm256_add_epi16(load(noise + i + 16), angle));
      /* Bytes stand as (e4 | e2 e3 e1 e0): put e3 above e2. */
      store(job.indices + i, _mm256_shuffle_epi32(index, _MM_SHUFFLE(3, 1, 2, 0)));
    }
  }
}

template <int L>
Done encode_sized(const EncodeJob &job) {
  const sw_scheme &scheme = *job.scheme;
  const sw_lattice &lattice = scheme.lattices[job.cls];
  const sw_table &table = scheme.tables[job.cls][job.width];
  constexpr size_t n = size_t{1} << L;
  alignas(64) int16_t y[n];
  Intake intake{_mm256_set1_ps(encode_gain(scheme, job.cls, L, job.scale)), job.x, job.patterns,
                _mm256_set1_epi32(static_cast<int32_t>(flips(*job.keys, job.block) >> 16))};
  if (!take_in<L>(intake, y, static_cast<int16_t>(half_range(lattice)), scheme.square_limit[L][job.cls]))
    return Done::beyond_terms;
  const int cells = lattice.granularity + 1;
  if (is_even(lattice, job.width))
    quantize(job, y, n, Evenly{lattice.fraction_bits});
  else if (cells <= 32)
    quantize(job, y, n, ByTable<2, 2>(table));
  else if (job.width <= 4)
    quantize(job, y, n, ByTable<4, 1>(table));
  else
    quantize(job, y, n, ByTable<4, 2>(table));
  send<L>(job);
  return Done::yes;
}

Done encode(const EncodeJob &job) {
  const sw_lattice &lattice = job.scheme->lattices[job.cls];
  const bool even = is_even(lattice, job.width);
  const bool small = lattice.granularity <= 63 && lattice.fraction_bits == 8 && job.width <= 5;
  const bool sixteen = lattice.rotation_bits == 16;
  Done done = Done::yes;
  const bool fast = job.scheme->rotate && job.scale >= kTinyScale && (even || (small && sixteen)) &&
                    with_size(job.log_size, [&](auto log_size) {
                      done = sixteen ? encode_sized<log_size>(job) : encode_wide<log_size>(job);
                    });
  return fast ? done : generic::encode(job);
}

void add(const AddJob &job) {
  add_payloads(job, [](auto parts, const uint8_t *bytes) { return Lookup<parts>(bytes); });
}

const Ops kAvx2 = {"avx2", draw_signs, draw_patterns, sum_squares, to_float, encode, decode, add, pack, unpack};

} // namespace

const Ops *avx2_ops() { return &kAvx2; }

} // namespace sw

#else

namespace sw {
const Ops *avx2_ops() { return nullptr; }
} // namespace sw

#endif
