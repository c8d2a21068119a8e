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

/* Bytes that lanes must exceed to be positive, as packing leaves them: -1, or 0 where a 0 counts as negative. */
template <int Bytes>
const int8_t *ties() {
  static const struct Ties {
    alignas(32) int8_t value[kTiesPeriod];
    Ties() {
      for (size_t i = 0; i < kTiesPeriod; ++i) value[i] = static_cast<int8_t>(tie(i) - 1);
      for (size_t i = 0; i < kTiesPeriod; i += 32) store(value + i, Lanes<Bytes>::in_order(load(value + i)));
    }
  } drawn;
  return drawn.value;
}

bool fits(const NarrowBlock &block) { return block.per_lane <= 2 && block.log_size >= 8 && block.top < 1 << 15; }

template <int Bytes>
int64_t squares_of(const NarrowBlock &block) {
  const Vec top = _mm256_set1_epi16(static_cast<int16_t>(block.top));
  /* 32 lanes add four squares to each sum of 32 bits: this many times. */
  const uint64_t most = (uint64_t{1} << 32) / (4 * static_cast<uint64_t>(block.top) * block.top + 1);
  const size_t run = 32 * std::max<uint64_t>(1, most);
  Total squares;
  for (size_t at = 0; at < block.size();) {
    Vec sum = _mm256_setzero_si256();
    for (const size_t stop = std::min(at + run, block.size()); at < stop; at += 32) {
      const Lanes<Bytes> lane(block.lanes, at);
      const Vec a = _mm256_sub_epi16(_mm256_add_epi16(lane.a, lane.a), top);
      const Vec b = _mm256_sub_epi16(_mm256_add_epi16(lane.b, lane.b), top);
      sum = _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(a, a), _mm256_madd_epi16(b, b)));
    }
    squares.add(sum);
  }
  return squares.value();
}

int64_t squares(const NarrowBlock &block) {
  if (!fits(block)) return generic::squares_of(block);
  return block.per_lane == 1 ? squares_of<1>(block) : squares_of<2>(block);
}

void measure(NarrowBlock *blocks, size_t n) {
  /* Apart, so that the roots of several blocks are found at a time. */
  for (size_t i = 0; i < n; ++i) blocks[i].squares = blocks[i].top ? squares(blocks[i]) : 0;
  for (size_t i = 0; i < n; ++i) generic::set_squares(blocks[i], blocks[i].squares);
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

/* 32 indices, but for bits beyond their width: from magnitudes, which count from the largest, and lanes around 0. */
template <int Bytes>
Vec indices_of(Vec magnitude, Vec a, Vec b, const int8_t *tie) {
  const Vec positive = _mm256_cmpgt_epi8(_mm256_packs_epi16(a, b), load(tie));
  return Lanes<Bytes>::in_order(_mm256_xor_si256(magnitude, positive));
}

/* Whether all magnitudes are scaled without loss. */
bool is_lossless(const NarrowBlock &block, const NarrowGains &gains) {
  return gains.down == 0 && block.top << gains.up < 1 << 15;
}

/* Lanes around 0, times 2^up. */
struct Scaled {
  Vec twice, top;
  Scaled(const NarrowBlock &block, int up)
      : twice(_mm256_set1_epi16(static_cast<int16_t>(2 << up))),
        top(_mm256_set1_epi16(static_cast<int16_t>(block.top << up))) {}
  Vec operator()(Vec lanes) const { return _mm256_sub_epi16(_mm256_mullo_epi16(lanes, twice), top); }
};

/* Widths up to 5, of blocks that are scaled without loss. Returns the sum of |lane| * level. */
template <int Bytes, int Width>
int64_t quantize_cells(const NarrowTables &tables, const NarrowGains &gains, const NarrowBlock &block) {
  const Lookup<4> magnitudes(tables.cells[Width]);
  const Lookup<1> levels(tables.levels[Width].low);
  const Scaled scaled(block, gains.up);
  const Vec gain = _mm256_set1_epi16(static_cast<int16_t>(gains.gain[0])), last = _mm256_set1_epi8(63);
  const Vec zero = _mm256_setzero_si256();
  const int8_t *const tie = ties<Bytes>();
  uint8_t *out = block.out;
  Total product;
  for (size_t at = 0; at < block.size(); at += 256) {
    Vec v[8], sum = zero; /* 32 bits hold 16 sums of two products below 2^23 */
    for (int k = 0; k < 8; ++k) {
      const size_t i = at + 32 * k;
      const Lanes<Bytes> lane(block.lanes, i);
      const Vec a = scaled(lane.a), size_a = _mm256_abs_epi16(a);
      const Vec b = scaled(lane.b), size_b = _mm256_abs_epi16(b);
      const Vec cell = _mm256_packus_epi16(_mm256_mulhi_epu16(size_a, gain), _mm256_mulhi_epu16(size_b, gain));
      const Vec j = magnitudes(_mm256_min_epu8(cell, last)), level = levels(j);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_a, _mm256_unpacklo_epi8(level, zero)));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_b, _mm256_unpackhi_epi8(level, zero)));
      v[k] = indices_of<Bytes>(j, a, b, tie + i % kTiesPeriod);
    }
    product.add(sum);
    out = pack_group<Width>(v, out);
  }
  return product.value() >> gains.up;
}

/* Magnitudes of words for widths from 6 on: the least of five lines, the first of which begins at 0. */
template <int Width>
struct Lines {
  Vec gain[5], offset[5];
  Lines(const NarrowGains &gains, const sw_quantizer &quantizer) {
    for (int k = 0; k < 5; ++k) {
      gain[k] = _mm256_set1_epi16(static_cast<int16_t>(gains.gain[k]));
      offset[k] = _mm256_set1_epi16(static_cast<int16_t>(quantizer.offsets[k]));
    }
  }
  Vec operator()(Vec scaled) const {
    Vec least = _mm256_mulhi_epu16(scaled, gain[0]);
    for (int k = 1; k < 5; ++k)
      least = _mm256_min_epu16(least, _mm256_add_epi16(_mm256_mulhi_epu16(scaled, gain[k]), offset[k]));
    return _mm256_subs_epu16(_mm256_set1_epi16((1 << (Width - 1)) - 1), _mm256_srli_epi16(least, 13 - Width));
  }
};

/* Sizes of lanes that are not scaled without loss. */
struct Limited {
  Vec most;
  __m128i up, down;
  explicit Limited(const NarrowGains &gains)
      : most(_mm256_set1_epi16(static_cast<int16_t>(kMaxMagnitude >> gains.up))), up(_mm_cvtsi32_si128(gains.up)),
        down(_mm_cvtsi32_si128(gains.down)) {}
  Vec operator()(Vec size) const { return _mm256_sll_epi16(_mm256_min_epi16(_mm256_srl_epi16(size, down), most), up); }
};

template <int Bytes, int Width, bool Lossless>
int64_t quantize_lines(const NarrowTables &tables, const NarrowGains &gains, const NarrowBlock &block) {
  const WordLookup<(1 << (Width - 5))> levels(tables.levels[Width]);
  const Lines<Width> magnitude(gains, tables.quantizers[Width]);
  const int up = Lossless ? gains.up : 0;
  const Scaled scaled(block, up);
  const Limited limited(gains);
  const bool small = block.top << up < 1 << 12; /* then 32 bits hold 16 sums of two products, else two of them */
  const int8_t *const tie = ties<Bytes>();
  uint8_t *out = block.out;
  Total product;
  for (size_t at = 0; at < block.size(); at += 256) {
    Vec v[8], sum = _mm256_setzero_si256();
    for (int k = 0; k < 8; ++k) {
      const size_t i = at + 32 * k;
      const Lanes<Bytes> lane(block.lanes, i);
      const Vec a = scaled(lane.a), size_a = _mm256_abs_epi16(a);
      const Vec b = scaled(lane.b), size_b = _mm256_abs_epi16(b);
      const Vec j = _mm256_packus_epi16(magnitude(Lossless ? size_a : limited(size_a)),
                                        magnitude(Lossless ? size_b : limited(size_b)));
      Vec level_a, level_b;
      levels(j, level_a, level_b);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_a, level_a));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_b, level_b));
      v[k] = indices_of<Bytes>(j, a, b, tie + i % kTiesPeriod);
      if (small) continue;
      product.add(sum);
      sum = _mm256_setzero_si256();
    }
    product.add(sum);
    out = pack_group<Width>(v, out);
  }
  return product.value() >> up;
}

template <int Bytes>
int64_t quantize_lanes(const NarrowTables &tables, int width, const NarrowGains &gains, const NarrowBlock &block) {
  int64_t product = 0;
  with_width(width, [&](auto known) {
    if constexpr (known <= 5)
      product = quantize_cells<Bytes, known>(tables, gains, block);
    else if (is_lossless(block, gains))
      product = quantize_lines<Bytes, known, true>(tables, gains, block);
    else
      product = quantize_lines<Bytes, known, false>(tables, gains, block);
  });
  return product;
}

void quantize(const NarrowTables &tables, int width, NarrowBlock &block) {
  const sw_quantizer &quantizer = tables.quantizers[width];
  const NarrowGains gains = generic::gains_of(block, quantizer);
  if (!fits(block) || (width <= 5 && !is_lossless(block, gains))) return generic::quantize(tables, width, block);
  const int64_t product = block.per_lane == 1 ? quantize_lanes<1>(tables, width, gains, block)
                                              : quantize_lanes<2>(tables, width, gains, block);
  generic::set_product(block, quantizer, product);
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

const NarrowOps kAvx2 = {measure, quantize, look_up, generic::widths};

} // namespace

const NarrowOps *avx2_narrow_ops() { return &kAvx2; }

} // namespace sw

#else

namespace sw {
const NarrowOps *avx2_narrow_ops() { return nullptr; }
} // namespace sw

#endif
