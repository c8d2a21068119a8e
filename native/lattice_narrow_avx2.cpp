/* Narrow sums in 256-bit vectors, of lanes below 2^15. */
#include "lattice_generic.h"

#include "lattice_narrow.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "lattice_planes256.h"

namespace sw {
namespace {

/* Vectors of 32-bit words, added up in 64 bits. */
struct Total {
  Vec sum = _mm256_setzero_si256();

  void add(Vec words) {
    const Vec low = _mm256_and_si256(words, _mm256_set1_epi64x(0xFFFFFFFF));
    sum = _mm256_add_epi64(sum, _mm256_add_epi64(low, _mm256_srli_epi64(words, 32)));
  }
  void add_signed(Vec words) {
    const Vec low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(words));
    sum = _mm256_add_epi64(sum, _mm256_add_epi64(low, _mm256_cvtepi32_epi64(_mm256_extracti128_si256(words, 1))));
  }
  int64_t value() const {
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return _mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1);
  }
};

/* 32 lanes as words. Packing a and b to bytes again leaves them in order, or not yet: see in_order. */
template <int Bytes>
struct Lanes {
  Vec a, b;
  Lanes(const uint8_t *lanes, size_t i) {
    if constexpr (Bytes == 1) {
      const Vec v = load(lanes + i), zero = _mm256_setzero_si256();
      a = _mm256_unpacklo_epi8(v, zero);
      b = _mm256_unpackhi_epi8(v, zero);
    } else {
      a = load(lanes + 2 * i);
      b = load(lanes + 2 * i + 32);
    }
  }
  static Vec in_order(Vec packed) { return Bytes == 1 ? packed : _mm256_permute4x64_epi64(packed, 0xD8); }
};

/* Bytes, 1 where a lane of 0 counts as negative, as packing lanes leaves them. */
template <int Bytes>
const uint8_t *ties() {
  static const struct Ties {
    alignas(32) uint8_t value[kTiesPeriod];
    Ties() {
      for (size_t i = 0; i < kTiesPeriod; ++i) value[i] = tie(i);
      for (size_t i = 0; i < kTiesPeriod; i += 32) store(value + i, Lanes<Bytes>::in_order(load(value + i)));
    }
  } drawn;
  return drawn.value;
}

bool fits(const NarrowJob &job) { return job.per_lane <= 2 && job.log_size >= 8 && job.top < 1 << 15; }

/* From k = half - lane: a lane around 0 is -2 k, or -2 k - 1 if top is odd. */
template <int Bytes, bool Odd>
int64_t squares_of(const NarrowJob &job) {
  const int64_t half = job.top >> 1, furthest = half + 1;
  const Vec middle = _mm256_set1_epi16(static_cast<int16_t>(half)), ones = _mm256_set1_epi16(1);
  /* 32 bits hold this many sums of two squares, and there are two of these for 32 lanes. */
  const size_t run = 32 * std::max<size_t>(1, (uint64_t{1} << 32) / (4 * furthest * furthest + 1));
  Total squares, sum;
  for (size_t at = 0; at < job.size();) {
    Vec square = _mm256_setzero_si256(), both = square;
    for (const size_t stop = std::min(at + run, job.size()); at < stop; at += 32) {
      const Lanes<Bytes> v(job.lanes, at);
      const Vec a = _mm256_sub_epi16(middle, v.a), b = _mm256_sub_epi16(middle, v.b);
      square = _mm256_add_epi32(square, _mm256_add_epi32(_mm256_madd_epi16(a, a), _mm256_madd_epi16(b, b)));
      if (Odd) both = _mm256_add_epi32(both, _mm256_madd_epi16(_mm256_add_epi16(a, b), ones));
    }
    squares.add(square);
    if (Odd) sum.add_signed(both);
  }
  return 4 * squares.value() + (Odd ? 4 * sum.value() + static_cast<int64_t>(job.size()) : 0);
}

int64_t squares(const NarrowJob &job) {
  if (!fits(job)) return generic::squares(job);
  if (job.top & 1) return job.per_lane == 1 ? squares_of<1, true>(job) : squares_of<2, true>(job);
  return job.per_lane == 1 ? squares_of<1, false>(job) : squares_of<2, false>(job);
}

/* Words by index: a and b stand as unpack leaves them. */
template <int Parts>
struct WordLookup {
  Lookup<Parts> low, high;
  explicit WordLookup(const SplitWords &words) : low(words.low), high(words.high) {}
  void operator()(Vec index, Vec &a, Vec &b) const {
    const Vec l = low(index), h = high(index);
    a = _mm256_unpacklo_epi8(l, h);
    b = _mm256_unpackhi_epi8(l, h);
  }
};

/* Indices of 32 lanes from their magnitudes and from lanes around 0. */
template <int Bytes, int Width>
Vec indices_of(Vec magnitude, Vec a, Vec b, const uint8_t *tie) {
  const Vec half = _mm256_set1_epi8(static_cast<char>(1 << (Width - 1)));
  const Vec negative = _mm256_cmpgt_epi8(load(tie), _mm256_packs_epi16(a, b));
  return Lanes<Bytes>::in_order(_mm256_add_epi8(half, _mm256_xor_si256(magnitude, negative)));
}

/* Widths up to 5, where magnitudes are scaled without loss: |lane| << up is below 2^15. */
template <int Bytes, int Width>
int64_t quantize_cells(const NarrowJob &job, const NarrowGains &gains, uint8_t *out) {
  const Lookup<4> magnitudes(gains.quantizer().magnitudes);
  const Lookup<1> levels(gains.tables->levels[Width].low);
  const Vec top = _mm256_set1_epi16(static_cast<int16_t>(job.top << gains.up)), zero = _mm256_setzero_si256();
  const Vec gain = _mm256_set1_epi16(static_cast<int16_t>(gains.gain[0])), last = _mm256_set1_epi8(63);
  const __m128i up = _mm_cvtsi32_si128(gains.up + 1);
  const uint8_t *const tie = ties<Bytes>();
  Total product;
  for (size_t at = 0; at < job.size(); at += 256) {
    Vec v[8], sum = zero; /* 32 bits hold 16 sums of two products below 2^23 */
    for (int k = 0; k < 8; ++k) {
      const size_t i = at + 32 * k;
      const Lanes<Bytes> lane(job.lanes, i);
      const Vec a = _mm256_sub_epi16(_mm256_sll_epi16(lane.a, up), top), size_a = _mm256_abs_epi16(a);
      const Vec b = _mm256_sub_epi16(_mm256_sll_epi16(lane.b, up), top), size_b = _mm256_abs_epi16(b);
      const Vec cell = _mm256_packus_epi16(_mm256_mulhi_epu16(size_a, gain), _mm256_mulhi_epu16(size_b, gain));
      const Vec j = magnitudes(_mm256_min_epu8(cell, last)), level = levels(j);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_a, _mm256_unpacklo_epi8(level, zero)));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_b, _mm256_unpackhi_epi8(level, zero)));
      v[k] = indices_of<Bytes, Width>(j, a, b, tie + i % kTiesPeriod);
    }
    product.add(sum);
    out = pack_group<Width>(v, out);
  }
  return product.value() >> gains.up;
}

/* Magnitudes of words for widths from 6 on: the least of five lines. */
template <int Width>
struct Lines {
  Vec most, gain[5], offset[5];
  __m128i up, down;
  explicit Lines(const NarrowGains &gains)
      : most(_mm256_set1_epi16(static_cast<int16_t>(kMaxMagnitude >> gains.up))), up(_mm_cvtsi32_si128(gains.up)),
        down(_mm_cvtsi32_si128(gains.down)) {
    for (int k = 0; k < 5; ++k) {
      gain[k] = _mm256_set1_epi16(static_cast<int16_t>(gains.gain[k]));
      offset[k] = _mm256_set1_epi16(static_cast<int16_t>(gains.quantizer().offsets[k]));
    }
  }
  Vec operator()(Vec v) const {
    const Vec scaled = _mm256_sll_epi16(_mm256_min_epi16(_mm256_srl_epi16(v, down), most), up);
    Vec least = _mm256_add_epi16(_mm256_mulhi_epu16(scaled, gain[0]), offset[0]);
    for (int k = 1; k < 5; ++k)
      least = _mm256_min_epu16(least, _mm256_add_epi16(_mm256_mulhi_epu16(scaled, gain[k]), offset[k]));
    return _mm256_min_epi16(_mm256_srli_epi16(least, 13 - Width), _mm256_set1_epi16((1 << (Width - 1)) - 1));
  }
};

template <int Bytes, int Width>
int64_t quantize_lines(const NarrowJob &job, const NarrowGains &gains, uint8_t *out) {
  const WordLookup<(1 << (Width - 5))> levels(gains.tables->levels[Width]);
  const Lines<Width> magnitude(gains);
  const Vec top = _mm256_set1_epi16(static_cast<int16_t>(job.top));
  const bool small = job.top < 1 << 12; /* then 32 bits hold 16 sums of two products, else two of them */
  const uint8_t *const tie = ties<Bytes>();
  Total product;
  for (size_t at = 0; at < job.size(); at += 256) {
    Vec v[8], sum = _mm256_setzero_si256();
    for (int k = 0; k < 8; ++k) {
      const size_t i = at + 32 * k;
      const Lanes<Bytes> lane(job.lanes, i);
      const Vec a = _mm256_sub_epi16(_mm256_add_epi16(lane.a, lane.a), top), size_a = _mm256_abs_epi16(a);
      const Vec b = _mm256_sub_epi16(_mm256_add_epi16(lane.b, lane.b), top), size_b = _mm256_abs_epi16(b);
      const Vec j = _mm256_packus_epi16(magnitude(size_a), magnitude(size_b));
      Vec level_a, level_b;
      levels(j, level_a, level_b);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_a, level_a));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_b, level_b));
      v[k] = indices_of<Bytes, Width>(j, a, b, tie + i % kTiesPeriod);
      if (small) continue;
      product.add(sum);
      sum = _mm256_setzero_si256();
    }
    product.add(sum);
    out = pack_group<Width>(v, out);
  }
  return product.value();
}

int64_t quantize(const NarrowJob &job, const NarrowGains &gains, uint8_t *out) {
  const bool lossless = gains.down == 0 && job.top << gains.up < 1 << 15;
  if (!fits(job) || (gains.width <= 5 && !lossless)) return generic::quantize(job, gains, out);
  int64_t product = 0;
  with_width(gains.width, [&](auto width) {
    if constexpr (width <= 5)
      product = job.per_lane == 1 ? quantize_cells<1, width>(job, gains, out) : quantize_cells<2, width>(job, gains, out);
    else
      product = job.per_lane == 1 ? quantize_lines<1, width>(job, gains, out) : quantize_lines<2, width>(job, gains, out);
  });
  return product;
}

/* A negative coordinate has the lane of the positive one, flipped: both add up to 2^15 - 1. */
template <int Width>
void look_up_words(const NarrowLanes &narrow, const uint8_t *data, size_t n, uint8_t *out) {
  constexpr int kHalf = 1 << (Width - 1);
  const WordLookup<kHalf / 16> lanes(narrow.lanes[Width]);
  const Vec half = _mm256_set1_epi8(static_cast<char>(kHalf)), rest = _mm256_set1_epi8(kHalf - 1);
  const Vec flip = _mm256_set1_epi16(0x7FFF);
  for (size_t at = 0; at < n; at += 256) {
    Vec v[8];
    data = unpack_group<Width>(data, v);
    for (int k = 0; k < 8; ++k) {
      const Vec index = _mm256_permute4x64_epi64(v[k], 0xD8);
      const Vec positive = _mm256_cmpeq_epi8(_mm256_and_si256(index, half), half);
      const Vec magnitude = _mm256_and_si256(_mm256_xor_si256(index, _mm256_andnot_si256(positive, rest)), rest);
      Vec a, b;
      lanes(magnitude, a, b);
      const Vec plus_a = _mm256_unpacklo_epi8(positive, positive), plus_b = _mm256_unpackhi_epi8(positive, positive);
      uint8_t *const to = out + 2 * (at + 32 * k);
      store(to, _mm256_xor_si256(a, _mm256_andnot_si256(plus_a, flip)));
      store(to + 32, _mm256_xor_si256(b, _mm256_andnot_si256(plus_b, flip)));
    }
  }
}

template <int Width>
void look_up_bytes(const NarrowLanes &narrow, const uint8_t *data, size_t n, uint8_t *out) {
  const Lookup<(Width == 5 ? 2 : 1)> lanes(narrow.lanes[Width].low);
  for (size_t at = 0; at < n; at += 256) {
    Vec v[8];
    data = unpack_group<Width>(data, v);
    for (int k = 0; k < 8; ++k) store(out + at + 32 * k, lanes(v[k]));
  }
}

void look_up(const NarrowLanes &narrow, int width, const uint8_t *data, size_t n, uint8_t *out) {
  if (n < 256) return generic::look_up(narrow, width, data, n, out);
  with_width(width, [&](auto known) {
    if constexpr (known <= 5)
      look_up_bytes<known>(narrow, data, n, out);
    else
      look_up_words<known>(narrow, data, n, out);
  });
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
