/* The lattice kernels for 256-bit vectors. */
#include "lattice_generic.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "lattice_encode.h"

namespace sw {
namespace {

void to_float(int kind, const void *src, size_t n, float *dst) {
  if (kind != SW_F16) return generic::to_float(kind, src, n, dst);
  const uint16_t *from = static_cast<const uint16_t *>(src);
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i))));
  if (i < n) generic::to_float(kind, from + i, n - i, dst + i);
}

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

/* Whether a block is within its terms, by the largest of its units and their squares. */
struct Check256 {
  Vec peak = _mm256_setzero_si256(), squares = _mm256_setzero_si256();
  int64_t folded = 0;

  void add(Vec units) {
    peak = _mm256_max_epu16(peak, _mm256_abs_epi16(units));
    squares = _mm256_add_epi32(squares, _mm256_madd_epi16(units, units));
  }
  /* If no unit alone exceeds the limit, 32-bit lanes hold 1024 squares. */
  void fold() {
    alignas(32) uint32_t lanes[8];
    store(lanes, squares);
    for (uint32_t lane : lanes) folded += lane;
    squares = _mm256_setzero_si256();
  }
  int64_t total() const { return folded; }
  int64_t largest_square() const { return square_of_largest(peak); }
  bool within(int64_t square_limit) const { return largest_square() <= square_limit && total() <= square_limit; }
};

struct V256 {
  using Int = Vec;
  using Float = __m256;
  using Double = __m256d;
  using Check = Check256;
  using Values = Lookup<2>;

  static Int load(const void *p) { return sw::load(p); }
  static void store(void *p, Int v) { sw::store(p, v); }
  static Int set16(int32_t v) { return _mm256_set1_epi16(static_cast<int16_t>(v)); }
  static Int set32(int32_t v) { return _mm256_set1_epi32(v); }
  static Int only_first(int32_t v) { return _mm256_zextsi128_si256(_mm_cvtsi32_si128(v)); }
  static Int add16(Int a, Int b) { return _mm256_add_epi16(a, b); }
  static Int sub16(Int a, Int b) { return _mm256_sub_epi16(a, b); }
  static Int add_saturated16(Int a, Int b) { return _mm256_adds_epi16(a, b); }
  static Int mulhrs16(Int a, Int b) { return _mm256_mulhrs_epi16(a, b); }
  static Int min16(Int a, Int b) { return _mm256_min_epi16(a, b); }
  static Int max16(Int a, Int b) { return _mm256_max_epi16(a, b); }
  static Int srl16(Int v, __m128i count) { return _mm256_srl_epi16(v, count); }
  static Int packus16(Int a, Int b) { return _mm256_packus_epi16(a, b); }
  static Int flip16(Int v, Int sign) { return _mm256_sign_epi16(v, sign); }
  static Int add32(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Int sub32(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  static Int madd16(Int a, Int b) { return _mm256_madd_epi16(a, b); }
  static Int xor_(Int a, Int b) { return _mm256_xor_si256(a, b); }

  static Float set_floats(float v) { return _mm256_set1_ps(v); }
  static Float load_floats(const float *p) { return _mm256_loadu_ps(p); }
  static void store_floats(float *p, Float v) { _mm256_storeu_ps(p, v); }
  static void stream_floats(float *p, Float v) { _mm256_stream_ps(p, v); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float xor_(Float a, Int b) { return _mm256_xor_ps(a, _mm256_castsi256_ps(b)); }
  static Float to_floats(Int v) { return _mm256_cvtepi32_ps(v); }
  static Int to_int(Float v) { return _mm256_cvtps_epi32(v); }

  static Double add_square(Double sum, const float *p) {
    const Double v = _mm256_cvtps_pd(_mm_loadu_ps(p));
    return _mm256_fmadd_pd(v, v, sum);
  }
  static double sum(Double four) {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
  }

  /* The register bit r and lane bits (l2 l1 l0) become l2 and (l1 l0 r). */
  static void trade16(Int &a, Int &b) {
    const Int lo = _mm256_unpacklo_epi16(a, b);
    b = _mm256_unpackhi_epi16(a, b);
    a = lo;
  }
  /* The same of 32-bit lanes (l1 l0): l1 and (l0 r). */
  static void trade32(Int &a, Int &b) {
    const Int lo = _mm256_unpacklo_epi32(a, b);
    b = _mm256_unpackhi_epi32(a, b);
    a = lo;
  }
  /* The register bit and the bit that chooses the 128-bit half change places. */
  static void trade128(Int &a, Int &b) {
    const Int lo = _mm256_permute2x128_si256(a, b, 0x20);
    b = _mm256_permute2x128_si256(a, b, 0x31);
    a = lo;
  }
  /* The upper halves of 32-bit lanes: of `low` in even lanes, of `high` in odd ones. */
  static Int upper_halves(Int low, Int high) { return _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xAA); }

  /* Where coordinate i of a run stands while it loads, lanes (e2 | e1 e0 e4), and when it quantizes, (e4 | e3 e1 e0).
   */
  static size_t load_order(size_t i) { return (i >> 3 & 1) << 4 | (i & 7) << 1 | i >> 4; }
  static size_t quantize_order(size_t i) {
    const size_t e4 = i >> 4, e3 = i >> 3 & 1, e2 = i >> 2 & 1;
    return e2 << 4 | e4 << 3 | e3 << 2 | (i & 3);
  }
  /* Bytes stand as (e4 | e2 e3 e1 e0): put e3 above e2. */
  static Int in_order(Int index) { return _mm256_shuffle_epi32(index, _MM_SHUFFLE(3, 1, 2, 0)); }

  template <class F>
  static void with_table(int cells, int width, const sw_table &table, const F &f) {
    if (cells <= 32)
      f(ByTable<2, 2>(table));
    else if (width <= 4)
      f(ByTable<4, 1>(table));
    else
      f(ByTable<4, 2>(table));
  }

  static void widen8(Int v, Int &a, Int &b) {
    a = _mm256_unpacklo_epi8(v, _mm256_setzero_si256());
    b = _mm256_unpackhi_epi8(v, _mm256_setzero_si256());
  }
  static Int widen16(const int16_t *p) {
    return _mm256_cvtepi16_epi32(_mm_load_si128(reinterpret_cast<const __m128i *>(p)));
  }
  static void store_run(int16_t *y, Int a, Int b) {
    store(y, a);
    store(y + 16, b);
  }
  /* Words that stand as (e3 | e2 e1 e0): put e2 and e1 below e0. */
  static Int pair_words(Int v) {
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order));
  }
};

/* One stage within a register of eight int32. */
template <int H>
inline Vec within(Vec v) {
  const Vec other = H == 1   ? _mm256_shuffle_epi32(v, 0xB1)
                    : H == 2 ? _mm256_shuffle_epi32(v, 0x4E)
                             : _mm256_permute2x128_si256(v, v, 1);
  const Vec sign = H == 1   ? _mm256_setr_epi32(1, -1, 1, -1, 1, -1, 1, -1)
                   : H == 2 ? _mm256_setr_epi32(1, 1, -1, -1, 1, 1, -1, -1)
                            : _mm256_setr_epi32(1, 1, 1, 1, -1, -1, -1, -1);
  return _mm256_add_epi32(other, _mm256_sign_epi32(v, sign));
}

/* Encoding in int32, for even tables whose steps are too fine for int16. */
template <int L>
Done encode_wide(const EncodeJob &job) {
  const sw_scheme &scheme = *job.scheme;
  const sw_lattice &lattice = scheme.lattices[job.cls];
  constexpr size_t n = size_t{1} << L;
  alignas(64) int32_t y[n];
  const __m256 gain = _mm256_set1_ps(encode_gain(scheme, job.cls, L, job.scale));
  const Vec flips_here = _mm256_set1_epi32(static_cast<int32_t>(flips(*job.keys, job.block)));
  Vec squares = _mm256_setzero_si256(), peak = _mm256_setzero_si256();
  for (size_t i = 0; i < n; i += 8) {
    fetch(job.x + kAhead + i);
    const Vec fixed = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(job.x + i), gain));
    const Vec dither = _mm256_srli_epi32(_mm256_xor_si256(load(job.patterns->dither + i), flips_here), 24);
    const Vec unit = _mm256_srai_epi32(_mm256_add_epi32(fixed, dither), 8);
    const Vec odd = _mm256_srli_epi64(unit, 32);
    peak = _mm256_max_epi32(peak, _mm256_abs_epi32(unit));
    squares = _mm256_add_epi64(squares, _mm256_add_epi64(_mm256_mul_epi32(unit, unit), _mm256_mul_epi32(odd, odd)));
    const Vec flip = _mm256_srai_epi32(load(job.patterns->sign + i), 31);
    const Vec v = _mm256_sub_epi32(_mm256_xor_si256(unit, flip), flip);
    store(y + i, within<4>(within<2>(within<1>(v))));
  }
  alignas(32) int64_t parts[4];
  store(parts, squares);
  const int64_t total = parts[0] + parts[1] + parts[2] + parts[3];
  if (total > scheme.square_limit[L][job.cls]) return Done::beyond_terms;
  alignas(32) int32_t peaks[8];
  store(peaks, peak);
  const int64_t most = *std::max_element(peaks, peaks + 8);
  const bool corrected = is_corrected(lattice), late = corrected && is_spiky(most * most, total);
  int32_t correction = corrected && !late ? gaussian_correction(lattice, total) : 0;
  /* On coordinate 0: the stages before have spread it to eight, the others spread it to all. */
  if (!late) store(y, _mm256_add_epi32(load(y), _mm256_set1_epi32(offset(lattice, correction))));
  for (size_t h = 8; h < n; h *= 2)
    for (size_t base = 0; base < n; base += 2 * h)
      for (size_t i = base; i < base + h; i += 8) {
        const Vec a = load(y + i), b = load(y + i + h);
        store(y + i, _mm256_add_epi32(a, b));
        store(y + i + h, _mm256_sub_epi32(a, b));
      }
  Vec bottom = _mm256_setzero_si256();
  if (late) {
    correction = generic::improved_correction(lattice, y, n, total);
    bottom = _mm256_set1_epi32(offset(lattice, correction));
  }
  const __m128i f = _mm_cvtsi32_si128(lattice.fraction_bits);
  const Vec top = _mm256_set1_epi32(2 * half_range(lattice)), zero = _mm256_setzero_si256();
  const __m256 change = _mm256_set1_ps(static_cast<float>(correction) * 0x1p-15f);
  const __m128i angle = _mm_set1_epi16(static_cast<int16_t>(turn(*job.keys, job.block)));
  const Vec first_bytes = _mm256_set1_epi32(0x0C080400);
  for (size_t i = 0; i < n; i += 8) {
    const Vec v = _mm256_add_epi32(load(y + i), bottom);
    const Vec moved = correction ? _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtepi32_ps(v), change)) : zero;
    const Vec position = _mm256_min_epi32(_mm256_max_epi32(_mm256_add_epi32(v, moved), zero), top);
    const __m128i word = _mm_loadu_si128(reinterpret_cast<const __m128i *>(job.patterns->noise + i));
    const Vec noise = _mm256_srli_epi32(_mm256_sll_epi32(_mm256_cvtepu16_epi32(_mm_add_epi16(word, angle)), f), 16);
    const Vec index = _mm256_srl_epi32(_mm256_add_epi32(position, noise), f);
    const Vec bytes = _mm256_shuffle_epi8(index, first_bytes);
    const int32_t low = _mm256_extract_epi32(bytes, 0), high = _mm256_extract_epi32(bytes, 4);
    std::memcpy(job.indices + i, &low, 4);
    std::memcpy(job.indices + i + 4, &high, 4);
  }
  Encoder<V256>::send<L>(job);
  return Done::yes;
}

Done encode(const EncodeJob &job) {
  const sw_lattice &lattice = job.scheme->lattices[job.cls];
  const bool even = is_even(lattice, job.width);
  const bool small = lattice.granularity <= 63 && fits_table(lattice) && job.width <= 5;
  const bool sixteen = lattice.rotation_bits == 16;
  Done done = Done::yes;
  const bool fast = job.scheme->rotate && job.scale >= kTinyScale && (even || (small && sixteen)) &&
                    with_size(job.log_size, [&](auto log_size) {
                      done = sixteen ? Encoder<V256>::encode<log_size>(job) : encode_wide<log_size>(job);
                    });
  return fast ? done : generic::encode(job);
}

void decode(const DecodeJob &job) {
  if (!Decoder<V256>::decode(job, 12)) generic::decode(job);
}

void add(const AddJob &job) {
  add_payloads(job, [](auto parts, const uint8_t *bytes) { return Lookup<parts>(bytes); });
}

const Ops kAvx2 = {
    "avx2", draw_signs, Encoder<V256>::draw_patterns, Encoder<V256>::sum_squares, to_float, encode, decode, add,
    pack,   unpack};

} // namespace

const Ops *avx2_ops() { return &kAvx2; }

} // namespace sw

#else

namespace sw {
const Ops *avx2_ops() { return nullptr; }
} // namespace sw

#endif
