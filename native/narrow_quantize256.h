/* Indices of narrow sums in 256-bit vectors, of lanes below 2^15. */
#pragma once
#include "narrow_lanes256.h"

namespace sw {
namespace {

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

/* Widths up to 5 of lanes of a byte, times 2^7 and gain / 2^23 to cells. Returns the sum of |lane| * level. */
template <int Width, bool Odd>
int64_t quantize_bytes(const NarrowTables &tables, int32_t gain, const NarrowBlock &block) {
  const Lookup<4> magnitudes(tables.cells[Width]);
  const Lookup<1> half_levels(tables.half_levels[Width]);
  const Halves<Odd> halves(block.top);
  const Vec gains = _mm256_set1_epi16(static_cast<int16_t>(gain)), last = _mm256_set1_epi8(63);
  const Vec zero = _mm256_setzero_si256(), rest = _mm256_set1_epi8(Odd ? -128 : 0), one = _mm256_set1_epi8(1);
  const Vec above = _mm256_add_epi8(halves.high, one);
  const int8_t *const tie = ties<1>();
  uint8_t *out = block.out;
  Vec products = zero, sums = zero, level_sums = zero;
  for (size_t at = 0; at < block.size(); at += 256) {
    Vec v[8];
    for (int k = 0; k < 8; ++k) {
      const size_t i = at + 32 * k;
      const Vec lane = load(block.lanes + i), half = halves(lane);
      const Vec a = _mm256_mulhi_epu16(_mm256_unpacklo_epi8(rest, half), gains);
      const Vec b = _mm256_mulhi_epu16(_mm256_unpackhi_epi8(rest, half), gains);
      const Vec j = magnitudes(_mm256_min_epu8(_mm256_packus_epi16(a, b), last)), level = half_levels(j);
      products = _mm256_add_epi32(products, dot_bytes(half, level));
      sums = _mm256_add_epi64(sums, _mm256_sad_epu8(half, zero));
      if constexpr (Odd) level_sums = _mm256_add_epi64(level_sums, _mm256_sad_epu8(level, zero));
      const Vec least = Odd ? halves.high : _mm256_add_epi8(above, load(tie + i % kTiesPeriod));
      v[k] = _mm256_xor_si256(j, _mm256_cmpeq_epi8(_mm256_max_epu8(lane, least), lane));
    }
    out = pack_group<Width>(v, out);
  }
  /* (2 half + Odd) * (2 half level + 1) */
  Total total;
  total.add(products);
  const int64_t of_halves = 4 * total.value() + 2 * Total{sums}.value();
  return Odd ? of_halves + 2 * Total{level_sums}.value() + static_cast<int64_t>(block.size()) : of_halves;
}

/* The same of words around an even top: |lane| / 2, times gain / 2^16 to cells. */
template <int Width>
int64_t quantize_even_words(const NarrowTables &tables, int32_t gain, const NarrowBlock &block) {
  const Lookup<4> magnitudes(tables.cells[Width]);
  const Lookup<1> levels(tables.levels[Width].low);
  const Vec middle = _mm256_set1_epi16(static_cast<int16_t>(block.top / 2)), zero = _mm256_setzero_si256();
  const Vec gains = _mm256_set1_epi16(static_cast<int16_t>(gain)), last = _mm256_set1_epi8(63);
  const int8_t *const tie = ties<2>();
  uint8_t *out = block.out;
  Total product;
  for (size_t at = 0; at < block.size(); at += 256) {
    Vec v[8], sum = zero; /* 32 bits hold 16 sums of two products below 2^22 */
    for (int k = 0; k < 8; ++k) {
      const size_t i = at + 32 * k;
      const Vec a = _mm256_sub_epi16(load(block.lanes + 2 * i), middle), size_a = _mm256_abs_epi16(a);
      const Vec b = _mm256_sub_epi16(load(block.lanes + 2 * i + 32), middle), size_b = _mm256_abs_epi16(b);
      const Vec cell = _mm256_packus_epi16(_mm256_mulhi_epu16(size_a, gains), _mm256_mulhi_epu16(size_b, gains));
      const Vec j = magnitudes(_mm256_min_epu8(cell, last)), level = levels(j);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_a, _mm256_unpacklo_epi8(level, zero)));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_b, _mm256_unpackhi_epi8(level, zero)));
      v[k] = indices_of<2>(j, a, b, tie + i % kTiesPeriod);
    }
    product.add(sum);
    out = pack_group<Width>(v, out);
  }
  return 2 * product.value();
}

/* The gain of |lane| * 2^(up - by), where `gains` has that of |lane| * 2^up; 0 if it exceeds 16 bits. */
inline int32_t gain_of_less(const NarrowGains &gains, int by) {
  const int64_t gain = by < 0 ? 0 : int64_t{gains.gain[0]} << by;
  return gain < 1 << 16 ? static_cast<int32_t>(gain) : 0;
}

template <int Width>
int64_t quantize_block(const NarrowTables &tables, const NarrowGains &gains, const NarrowBlock &block) {
  const bool lossless = is_lossless(block, gains), bytes = block.per_lane == 1;
  const auto plain = [&] { return generic::quantize_block(tables.quantizers[Width], Width, block, gains); };
  if (!fits(block)) return plain();
  if constexpr (Width <= 5) {
    if (!lossless) return plain();
    const bool odd = block.top % 2;
    const int32_t gain = bytes ? gain_of_less(gains, gains.up - 7) : odd ? 0 : gain_of_less(gains, gains.up + 1);
    if (gain && bytes)
      return odd ? quantize_bytes<Width, true>(tables, gain, block) : quantize_bytes<Width, false>(tables, gain, block);
    if (gain) return quantize_even_words<Width>(tables, gain, block);
    return bytes ? quantize_cells<1, Width>(tables, gains, block) : quantize_cells<2, Width>(tables, gains, block);
  } else if (bytes) {
    return lossless ? quantize_lines<1, Width, true>(tables, gains, block)
                    : quantize_lines<1, Width, false>(tables, gains, block);
  } else {
    return lossless ? quantize_lines<2, Width, true>(tables, gains, block)
                    : quantize_lines<2, Width, false>(tables, gains, block);
  }
}

inline void quantize(const NarrowTables &tables, int width, NarrowBlocks &blocks, const std::vector<uint32_t> &which) {
  with_width(width, [&](auto known) {
    generic::quantize_blocks(tables.quantizers[width], blocks, which,
                             [&](const NarrowBlock &block, const NarrowGains &gains) {
                               return quantize_block<known>(tables, gains, block);
                             });
  });
}

} // namespace
} // namespace sw
