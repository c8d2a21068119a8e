/* Narrow sums in 256-bit vectors, of lanes below 2^15.
 */
#include "lattice_generic.h"

#include "lattice_narrow.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace sw {
namespace {

using Vec = __m256i;

inline Vec load(const void *p) { return _mm256_loadu_si256(static_cast<const Vec *>(p)); }
inline void store(void *p, Vec v) { _mm256_storeu_si256(static_cast<Vec *>(p), v); }

template <int Bytes>
inline Vec words(const uint8_t *lanes, size_t i) {
  if constexpr (Bytes == 1) return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(lanes + i)));
  return load(lanes + 2 * i);
}

inline int64_t sum_of_words(Vec v) {
  alignas(32) uint32_t parts[8];
  store(parts, v);
  int64_t sum = 0;
  for (uint32_t part : parts) sum += part;
  return sum;
}

bool fits(const NarrowJob &job) { return job.per_lane <= 2 && job.log_size >= 8 && job.top < 1 << 15; }

template <int Bytes>
int64_t squares_of(const NarrowJob &job) {
  const Vec top = _mm256_set1_epi16(static_cast<int16_t>(job.top));
  /* Each sum of two squares is at most 2 top^2; 32 bits hold this many of them. */
  const size_t most =
      static_cast<size_t>(std::max<int64_t>(1, (int64_t{1} << 31) / std::max<int64_t>(1, job.top * job.top)));
  const size_t run = 16 * most;
  int64_t sum = 0;
  for (size_t at = 0; at < job.size();) {
    Vec part = _mm256_setzero_si256();
    for (const size_t stop = std::min(at + run, job.size()); at < stop; at += 16) {
      const Vec v = words<Bytes>(job.lanes, at), d = _mm256_sub_epi16(_mm256_add_epi16(v, v), top);
      part = _mm256_add_epi32(part, _mm256_madd_epi16(d, d));
    }
    sum += sum_of_words(part);
  }
  return sum;
}

int64_t squares(const NarrowJob &job) {
  if (!fits(job)) return generic::squares(job);
  return job.per_lane == 1 ? squares_of<1>(job) : squares_of<2>(job);
}

/* 16 * Parts bytes by index: each further 16 are applied as a difference to the ones before. */
template <int Parts>
struct Table {
  Vec part[Parts];
  explicit Table(const uint8_t *table) {
    for (int k = Parts - 1; k >= 0; --k) {
      part[k] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table + 16 * k)));
      if (k + 1 < Parts) part[k + 1] = _mm256_xor_si256(part[k + 1], part[k]);
    }
  }
  Vec operator()(Vec index) const {
    Vec out = _mm256_shuffle_epi8(part[0], index);
    for (int k = 1; k < Parts; ++k) {
      const Vec beyond = _mm256_sub_epi8(index, _mm256_set1_epi8(static_cast<char>(16 * k)));
      out = _mm256_xor_si256(out, _mm256_shuffle_epi8(part[k], beyond));
    }
    return out;
  }
};

/* Words by index: their low and their high bytes. */
template <int Parts>
struct WordTable {
  struct Half {
    alignas(16) uint8_t bytes[16 * Parts];
    Half(const uint16_t *words, int shift) {
      for (int i = 0; i < 16 * Parts; ++i) bytes[i] = static_cast<uint8_t>(words[i] >> shift);
    }
  };
  Table<Parts> low, high;
  explicit WordTable(const uint16_t *words) : low(Half(words, 0).bytes), high(Half(words, 8).bytes) {}
  /* Of 32 indices: a and b stand as unpack leaves them. */
  void operator()(Vec index, Vec &a, Vec &b) const {
    const Vec l = low(index), h = high(index);
    a = _mm256_unpacklo_epi8(l, h);
    b = _mm256_unpackhi_epi8(l, h);
  }
};

/* 32 lanes around 0, in two registers. */
struct Around {
  Vec a, b, negative; /* negative: bytes in the order that packs leaves */
  template <int Bytes>
  static Around of(const NarrowJob &job, const int16_t *tie, Vec top, size_t i) {
    const Vec x = words<Bytes>(job.lanes, i), y = words<Bytes>(job.lanes, i + 16);
    const Vec a = _mm256_sub_epi16(_mm256_add_epi16(x, x), top), b = _mm256_sub_epi16(_mm256_add_epi16(y, y), top);
    const Vec tie_a = load(tie + i % kTiesPeriod), tie_b = load(tie + i % kTiesPeriod + 16);
    const Vec negative = _mm256_packs_epi16(_mm256_cmpgt_epi16(tie_a, a), _mm256_cmpgt_epi16(tie_b, b));
    return {_mm256_abs_epi16(a), _mm256_abs_epi16(b), negative};
  }
  void store_index(Vec magnitude, Vec half, uint8_t *to) const {
    const Vec index = _mm256_add_epi8(half, _mm256_xor_si256(magnitude, negative));
    store(to, _mm256_permute4x64_epi64(index, 0xD8));
  }
};

/* Widths up to 5, where magnitudes are scaled without loss: |lane| << up is below 2^15. */
template <int Bytes>
int64_t quantize_cells(const NarrowJob &job, const NarrowGains &gains, uint8_t *indices) {
  const sw_quantizer &quantizer = *gains.quantizer;
  const Table<4> magnitudes(quantizer.magnitudes);
  alignas(16) uint8_t bytes[16] = {};
  for (int j = 0; j < 1 << (gains.width - 1); ++j) bytes[j] = static_cast<uint8_t>(quantizer.levels[j]);
  const Table<1> levels(bytes);
  const Vec top = _mm256_set1_epi16(static_cast<int16_t>(job.top)), zero = _mm256_setzero_si256();
  const Vec gain = _mm256_set1_epi16(static_cast<int16_t>(gains.gain[0])), last = _mm256_set1_epi8(63);
  const Vec half = _mm256_set1_epi8(static_cast<char>(1 << (gains.width - 1)));
  const __m128i up = _mm_cvtsi32_si128(gains.up);
  const int16_t *tie = ties();
  int64_t product = 0;
  for (size_t at = 0; at < job.size(); at += 256) { /* 32 bits hold 16 sums of two products below 2^23 */
    Vec sum = zero;
    for (size_t i = at; i < at + 256; i += 32) {
      const Around v = Around::of<Bytes>(job, tie, top, i);
      const Vec cell_a = _mm256_mulhi_epu16(_mm256_sll_epi16(v.a, up), gain);
      const Vec cell_b = _mm256_mulhi_epu16(_mm256_sll_epi16(v.b, up), gain);
      const Vec j = magnitudes(_mm256_min_epu8(_mm256_packus_epi16(cell_a, cell_b), last)), level = levels(j);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(v.a, _mm256_unpacklo_epi8(level, zero)));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(v.b, _mm256_unpackhi_epi8(level, zero)));
      v.store_index(j, half, indices + i);
    }
    product += sum_of_words(sum);
  }
  return product;
}

/* Widths from 6 on. */
template <int Bytes, int Width>
int64_t quantize_lines(const NarrowJob &job, const NarrowGains &gains, uint8_t *indices) {
  const sw_quantizer &quantizer = *gains.quantizer;
  const WordTable<(1 << (Width - 5))> levels(quantizer.levels);
  const Vec top = _mm256_set1_epi16(static_cast<int16_t>(job.top)), low = _mm256_set1_epi64x(0xFFFFFFFF);
  const Vec most = _mm256_set1_epi16(static_cast<int16_t>(kMaxMagnitude >> gains.up));
  const Vec last = _mm256_set1_epi16((1 << (Width - 1)) - 1),
            half = _mm256_set1_epi8(static_cast<char>(1 << (Width - 1)));
  const __m128i up = _mm_cvtsi32_si128(gains.up), down = _mm_cvtsi32_si128(gains.down);
  Vec gain[5], offset[5];
  for (int k = 0; k < 5; ++k) {
    gain[k] = _mm256_set1_epi16(static_cast<int16_t>(gains.gain[k]));
    offset[k] = _mm256_set1_epi16(static_cast<int16_t>(quantizer.offsets[k]));
  }
  const auto magnitude = [&](Vec v) {
    const Vec scaled = _mm256_sll_epi16(_mm256_min_epi16(_mm256_srl_epi16(v, down), most), up);
    Vec least = _mm256_add_epi16(_mm256_mulhi_epu16(scaled, gain[0]), offset[0]);
    for (int k = 1; k < 5; ++k)
      least = _mm256_min_epu16(least, _mm256_add_epi16(_mm256_mulhi_epu16(scaled, gain[k]), offset[k]));
    return _mm256_min_epi16(_mm256_srli_epi16(least, 13 - Width), last);
  };
  const int16_t *tie = ties();
  Vec sum = _mm256_setzero_si256();
  const auto add = [&](Vec products) { /* which fill 32 bits */
                                       sum = _mm256_add_epi64(sum, _mm256_add_epi64(_mm256_and_si256(products, low),
                                                                                    _mm256_srli_epi64(products, 32)));
  };
  for (size_t i = 0; i < job.size(); i += 32) {
    const Around v = Around::of<Bytes>(job, tie, top, i);
    const Vec j = _mm256_packus_epi16(magnitude(v.a), magnitude(v.b));
    Vec level_a, level_b;
    levels(j, level_a, level_b);
    add(_mm256_madd_epi16(v.a, level_a));
    add(_mm256_madd_epi16(v.b, level_b));
    v.store_index(j, half, indices + i);
  }
  alignas(32) int64_t parts[4];
  store(parts, sum);
  return parts[0] + parts[1] + parts[2] + parts[3];
}

template <int Bytes>
int64_t quantize_lanes(const NarrowJob &job, const NarrowGains &gains, uint8_t *indices) {
  switch (gains.width) {
  case 6: return quantize_lines<Bytes, 6>(job, gains, indices);
  case 7: return quantize_lines<Bytes, 7>(job, gains, indices);
  case 8: return quantize_lines<Bytes, 8>(job, gains, indices);
  default: return quantize_cells<Bytes>(job, gains, indices);
  }
}

int64_t quantize(const NarrowJob &job, const NarrowGains &gains, uint8_t *indices) {
  const bool lossless = gains.down == 0 && job.top << gains.up < 1 << 15;
  if (!fits(job) || (gains.width <= 5 && !lossless)) return generic::quantize(job, gains, indices);
  return job.per_lane == 1 ? quantize_lanes<1>(job, gains, indices) : quantize_lanes<2>(job, gains, indices);
}

/* A negative coordinate has the lane of the positive one, flipped: both add up to 2^8 - 1 or 2^15 - 1. */
template <int Width>
void look_up_words(const uint16_t *lane, const uint8_t *indices, size_t n, uint8_t *out) {
  constexpr int kHalf = 1 << (Width - 1);
  const WordTable<kHalf / 16> lanes(lane + kHalf);
  const Vec half = _mm256_set1_epi8(static_cast<char>(kHalf)), rest = _mm256_set1_epi8(kHalf - 1);
  const Vec flip = _mm256_set1_epi16(0x7FFF);
  for (size_t i = 0; i < n; i += 32) {
    const Vec index = _mm256_permute4x64_epi64(load(indices + i), 0xD8);
    const Vec positive = _mm256_cmpeq_epi8(_mm256_and_si256(index, half), half);
    const Vec magnitude = _mm256_and_si256(_mm256_xor_si256(index, _mm256_andnot_si256(positive, rest)), rest);
    Vec a, b;
    lanes(magnitude, a, b);
    const Vec plus_a = _mm256_unpacklo_epi8(positive, positive), plus_b = _mm256_unpackhi_epi8(positive, positive);
    store(out + 2 * i, _mm256_xor_si256(a, _mm256_andnot_si256(plus_a, flip)));
    store(out + 2 * i + 32, _mm256_xor_si256(b, _mm256_andnot_si256(plus_b, flip)));
  }
}

void look_up_bytes(const uint16_t *lane, int width, const uint8_t *indices, size_t n, uint8_t *out) {
  alignas(16) uint8_t bytes[32] = {};
  for (int z = 0; z < 1 << width; ++z) bytes[z] = static_cast<uint8_t>(lane[z]);
  const Table<2> lanes(bytes);
  for (size_t i = 0; i < n; i += 32) store(out + i, lanes(load(indices + i)));
}

void look_up(const NarrowLanes &narrow, int width, const uint8_t *indices, size_t n, uint8_t *out) {
  const uint16_t *lane = narrow.lane[width];
  switch (n % 32 ? 0 : width) {
  case 0: return generic::look_up(narrow, width, indices, n, out);
  case 6: return look_up_words<6>(lane, indices, n, out);
  case 7: return look_up_words<7>(lane, indices, n, out);
  case 8: return look_up_words<8>(lane, indices, n, out);
  default: return look_up_bytes(lane, width, indices, n, out);
  }
}

const NarrowOps kAvx2 = {squares, quantize, look_up, generic::widths};

} // namespace

const NarrowOps *avx2_narrow_ops() { return &kAvx2; }

} // namespace sw

#else

namespace sw {
const NarrowOps *avx2_narrow_ops() { return nullptr; }
} // namespace sw

#endif
