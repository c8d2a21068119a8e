/* Lanes of complete sums in 256-bit vectors: around 0, their squares, and which zeros count as negative. */
#pragma once
#include "lattice_narrow.h"
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

/* 32 lanes of a byte around 0, without their signs: a lane is (2 * half + Odd) / 2 from the middle of 0..top. */
template <bool Odd>
struct Halves {
  Vec low, high;
  explicit Halves(int32_t top)
      : low(_mm256_set1_epi8(static_cast<char>(top >> 1))), high(_mm256_set1_epi8(static_cast<char>((top + 1) >> 1))) {}
  /* At most 127. */
  Vec operator()(Vec lanes) const {
    return _mm256_or_si256(_mm256_subs_epu8(lanes, high), _mm256_subs_epu8(low, lanes));
  }
};

/* Sums of two products of bytes each, as 32-bit words: a * b, of which b and all sums of four must stay below 2^15. */
inline Vec dot_bytes(Vec a, Vec b) { return _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)); }

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

inline bool fits(const NarrowBlock &block) { return block.per_lane <= 2 && block.log_size >= 8 && block.top < 1 << 15; }

template <bool Odd>
int64_t squares_of_bytes(const NarrowBlock &block) {
  const Halves<Odd> halves(block.top);
  const Vec zero = _mm256_setzero_si256();
  Vec squares = zero, sum = zero; /* 32 bits hold the squares of 2^20 lanes */
  for (size_t at = 0; at < block.size(); at += 32) {
    const Vec half = halves(load(block.lanes + at));
    squares = _mm256_add_epi32(squares, dot_bytes(half, half));
    if constexpr (Odd) sum = _mm256_add_epi64(sum, _mm256_sad_epu8(half, zero));
  }
  Total total;
  total.add(squares);
  const int64_t of_halves = 4 * total.value();
  return Odd ? of_halves + 4 * Total{sum}.value() + static_cast<int64_t>(block.size()) : of_halves;
}

inline int64_t squares_of_words(const NarrowBlock &block) {
  const Vec top = _mm256_set1_epi16(static_cast<int16_t>(block.top));
  /* 32 lanes add four squares to each sum of 32 bits: this many times. */
  const uint64_t most = (uint64_t{1} << 32) / (4 * static_cast<uint64_t>(block.top) * block.top + 1);
  const size_t run = 32 * std::max<uint64_t>(1, most);
  Total squares;
  for (size_t at = 0; at < block.size();) {
    Vec sum = _mm256_setzero_si256();
    for (const size_t stop = std::min(at + run, block.size()); at < stop; at += 32) {
      const Lanes<2> lane(block.lanes, at);
      const Vec a = _mm256_sub_epi16(_mm256_add_epi16(lane.a, lane.a), top);
      const Vec b = _mm256_sub_epi16(_mm256_add_epi16(lane.b, lane.b), top);
      sum = _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(a, a), _mm256_madd_epi16(b, b)));
    }
    squares.add(sum);
  }
  return squares.value();
}

inline int64_t squares_of(const NarrowBlock &block) {
  if (!fits(block)) return generic::squares_of(block);
  if (block.per_lane == 2) return squares_of_words(block);
  return block.top % 2 ? squares_of_bytes<true>(block) : squares_of_bytes<false>(block);
}

} // namespace
} // namespace sw
