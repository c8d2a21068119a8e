/* Narrow sums in 512-bit vectors: indices of lanes of a byte, of which there are few, so that every block looks its
 * indices up; and lanes of indices.
 *
 * What gains nothing from wider vectors is left to the 256-bit code. */
#include "lattice_generic.h"

#include "lattice_narrow.h"

#if defined(__AVX512BW__) && defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#include "narrow_quantize256.h"
#include "wide512.h"

namespace sw {
namespace {

inline Wide load_wide(const void *p) { return _mm512_loadu_si512(p); }

/* As Halves, of 64 lanes. */
struct WideHalves {
  Wide low, high;
  explicit WideHalves(int32_t top)
      : low(_mm512_set1_epi8(static_cast<char>(top >> 1))), high(_mm512_set1_epi8(static_cast<char>((top + 1) >> 1))) {}
  Wide operator()(Wide lanes) const {
    return _mm512_or_si512(_mm512_subs_epu8(lanes, high), _mm512_subs_epu8(low, lanes));
  }
};

inline bool fits_bytes(const NarrowBlock &block) { return block.per_lane == 1 && block.log_size >= 8; }

template <bool Odd>
int64_t squares_of_wide(const NarrowBlock &block) {
  const WideHalves halves(block.top);
  const Wide one = _mm512_set1_epi8(1);
  Wide squares[2] = {}, sum = _mm512_setzero_si512(); /* 32 bits hold the squares of 2^20 lanes */
  for (size_t at = 0; at < block.size(); at += 128)
    for (int k = 0; k < 2; ++k) {
      const Wide half = halves(load_wide(block.lanes + at + 64 * k));
      squares[k] = _mm512_dpbusd_epi32(squares[k], half, half);
      if constexpr (Odd) sum = _mm512_dpbusd_epi32(sum, half, one);
    }
  const int64_t of_halves = 4 * sum_of_words(_mm512_add_epi32(squares[0], squares[1]));
  return Odd ? of_halves + 4 * sum_of_words(sum) + static_cast<int64_t>(block.size()) : of_halves;
}

void measure(NarrowBlocks &blocks) {
  generic::measure_blocks(blocks, [](const NarrowBlock &block) {
    if (!fits_bytes(block)) return squares_of(block);
    return block.top % 2 ? squares_of_wide<true>(block) : squares_of_wide<false>(block);
  });
}

/* Up to 128 bytes by index. */
template <int Entries>
struct WideLookup {
  Wide low, high;
  explicit WideLookup(const uint8_t *bytes) : low(load_wide(bytes)), high(low) {
    if constexpr (Entries > 64) high = load_wide(bytes + 64);
  }
  Wide operator()(Wide index) const {
    return Entries > 64 ? _mm512_permutex2var_epi8(low, index, high) : _mm512_permutexvar_epi8(index, low);
  }
};

/* Of one block, by half the size of a lane: the index, as magnitudes count, and the level. */
template <int Width>
struct BySize {
  static constexpr int kLevels = 1 << (Width - 1);
  static constexpr bool kWords = Width > 5; /* levels that exceed a byte */
  alignas(64) uint8_t index[128], low[128], high[128];

  BySize(const NarrowTables &tables, const NarrowGains &gains, const NarrowBlock &block) {
    const WideLookup<kLevels> lows(tables.levels[Width].low), highs(tables.levels[Width].high);
    for (int at = 0; 2 * at <= block.top; at += 64) {
      const Wide here = magnitudes(tables, gains, block, at);
      _mm512_store_si512(index + at, here);
      _mm512_store_si512(low + at, lows(here));
      if constexpr (kWords) _mm512_store_si512(high + at, highs(here));
    }
  }

private:
  /* Of lanes 2 at + top % 2 away from the middle and the 63 that follow: see generic::magnitude. */
  static Wide magnitudes(const NarrowTables &tables, const NarrowGains &gains, const NarrowBlock &block, int at) {
    const __m128i up = _mm_cvtsi32_si128(gains.up), down = _mm_cvtsi32_si128(gains.down);
    const Wide most = _mm512_set1_epi16(static_cast<int16_t>(kMaxMagnitude >> gains.up));
    __m256i bytes[2];
    for (int k = 0; k < 2; ++k) {
      const Wide half =
          _mm512_add_epi16(_mm512_load_si512(kCount), _mm512_set1_epi16(static_cast<int16_t>(at + 32 * k)));
      const Wide size =
          _mm512_add_epi16(_mm512_add_epi16(half, half), _mm512_set1_epi16(static_cast<int16_t>(block.top % 2)));
      const Wide scaled = _mm512_sll_epi16(_mm512_min_epi16(_mm512_srl_epi16(size, down), most), up);
      bytes[k] = _mm512_cvtepi16_epi8(Width <= 5 ? cells(gains, scaled) : lines(tables, gains, scaled));
    }
    const Wide all = _mm512_inserti64x4(_mm512_castsi256_si512(bytes[0]), bytes[1], 1);
    return Width <= 5 ? _mm512_permutexvar_epi8(all, load_wide(tables.cells[Width])) : all;
  }
  static Wide scaled_by(Wide scaled, int32_t gain) {
    return _mm512_mulhi_epu16(scaled, _mm512_set1_epi16(static_cast<int16_t>(gain)));
  }
  static Wide cells(const NarrowGains &gains, Wide scaled) {
    return _mm512_min_epu16(scaled_by(scaled, gains.gain[0]), _mm512_set1_epi16(63));
  }
  static Wide lines(const NarrowTables &tables, const NarrowGains &gains, Wide scaled) {
    const int32_t *const offsets = tables.quantizers[Width].offsets;
    Wide least = scaled_by(scaled, gains.gain[0]);
    for (int k = 1; k < 5; ++k)
      least = _mm512_min_epu16(least, _mm512_add_epi16(scaled_by(scaled, gains.gain[k]),
                                                       _mm512_set1_epi16(static_cast<int16_t>(offsets[k]))));
    return _mm512_subs_epu16(_mm512_set1_epi16(kLevels - 1), _mm512_srli_epi16(least, 13 - Width));
  }
  alignas(64) static constexpr uint16_t kCount[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
};

/* Sizes: 64 or 128, which those of this block's lanes, halved, are below. Returns the sum of |lane| * level. */
template <int Width, bool Odd, int Sizes>
int64_t quantize_wide(const BySize<Width> &by_size, const NarrowBlock &block) {
  constexpr bool kWords = BySize<Width>::kWords;
  const WideLookup<Sizes> index_of(by_size.index), low_of(by_size.low), high_of(by_size.high);
  const WideHalves halves(block.top);
  const Wide one = _mm512_set1_epi8(1), above = _mm512_add_epi8(halves.high, one);
  const int8_t *const tie = ties<1>();
  uint8_t *out = block.out;
  Wide low = _mm512_setzero_si512(), high = low, low_sum = low, high_sum = low; /* 32 bits hold 2^20 lanes */
  for (size_t at = 0; at < block.size(); at += 256) {
    alignas(64) uint8_t index[256];
    for (size_t k = 0; k < 256; k += 64) {
      const Wide lane = load_wide(block.lanes + at + k), half = halves(lane), level = low_of(half);
      low = _mm512_dpbusd_epi32(low, level, half);
      if constexpr (Odd) low_sum = _mm512_dpbusd_epi32(low_sum, level, one);
      if constexpr (kWords) {
        const Wide upper = high_of(half);
        high = _mm512_dpbusd_epi32(high, upper, half);
        if constexpr (Odd) high_sum = _mm512_dpbusd_epi32(high_sum, upper, one);
      }
      const Wide least = Odd ? halves.high : _mm512_add_epi8(above, load_wide(tie + (at + k) % kTiesPeriod));
      const Wide j = index_of(half);
      const __mmask64 positive = _mm512_cmpge_epu8_mask(lane, least);
      _mm512_store_si512(index + k, _mm512_mask_sub_epi8(j, positive, _mm512_set1_epi8(-1), j));
    }
    Vec v[8];
    for (int k = 0; k < 8; ++k) v[k] = load(index + 32 * k);
    out = pack_group<Width>(v, out);
  }
  const int64_t of_halves = 2 * (sum_of_words(low) + (kWords ? 256 * sum_of_words(high) : 0));
  return Odd ? of_halves + sum_of_words(low_sum) + (kWords ? 256 * sum_of_words(high_sum) : 0) : of_halves;
}

template <int Width>
int64_t quantize_bytes_wide(const NarrowTables &tables, const NarrowGains &gains, const NarrowBlock &block) {
  const BySize<Width> by_size(tables, gains, block);
  if (block.top < 128)
    return block.top % 2 ? quantize_wide<Width, true, 64>(by_size, block)
                         : quantize_wide<Width, false, 64>(by_size, block);
  return block.top % 2 ? quantize_wide<Width, true, 128>(by_size, block)
                       : quantize_wide<Width, false, 128>(by_size, block);
}

void quantize_all(const NarrowTables &tables, int width, NarrowBlocks &blocks, const std::vector<uint32_t> &which) {
  with_width(width, [&](auto known) {
    generic::quantize_blocks(tables.quantizers[width], blocks, which,
                             [&](const NarrowBlock &block, const NarrowGains &gains) {
                               return fits_bytes(block) ? quantize_bytes_wide<known>(tables, gains, block)
                                                        : quantize_block<known>(tables, gains, block);
                             });
  });
}

/* Up to 128 words by index, of which higher bits do not count. */
template <int Entries>
struct WordsByIndex {
  Wide part[Entries / 32];
  explicit WordsByIndex(const uint16_t *words) {
    for (int k = 0; k < Entries / 32; ++k) part[k] = load_wide(words + 32 * k);
  }
  Wide operator()(Wide index) const {
    const Wide low = _mm512_permutex2var_epi16(part[0], index, part[1]);
    if constexpr (Entries == 64) {
      return low;
    } else {
      const __mmask32 is_high = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
      return _mm512_mask_mov_epi16(low, is_high, _mm512_permutex2var_epi16(part[2], index, part[3]));
    }
  }
};

template <int Width>
void look_up_words(const NarrowLanes &narrow, const uint8_t *data, size_t n, uint8_t *out) {
  constexpr bool kByMagnitude = Width == 8; /* 256 words would take two lookups more */
  const WordsByIndex<std::min(1 << Width, 128)> words(narrow.lane[Width] + (kByMagnitude ? 128 : 0));
  for (size_t at = 0; at < n; at += 256) {
    Vec v[8];
    data = unpack_group<Width>(data, v);
    for (int k = 0; k < 8; ++k) {
      const Wide index = _mm512_cvtepu8_epi16(v[k]);
      Wide found;
      if constexpr (kByMagnitude) { /* a negative coordinate has the lane of the positive one, flipped */
        const __mmask32 negative = _mm512_testn_epi16_mask(index, _mm512_set1_epi16(128));
        const Wide flip = _mm512_maskz_set1_epi16(negative, 0x7FFF);
        found = _mm512_xor_si512(words(_mm512_xor_si512(index, flip)), flip);
      } else {
        found = words(index);
      }
      _mm512_storeu_si512(out + 2 * (at + 32 * k), found);
    }
  }
}

template <int Width>
void look_up_bytes(const NarrowLanes &narrow, const uint8_t *data, size_t n, uint8_t *out) {
  const Vec lanes = load(narrow.lanes[Width].low);
  for (size_t at = 0; at < n; at += 256) {
    Vec v[8];
    data = unpack_group<Width>(data, v);
    for (int k = 0; k < 8; ++k) store(out + at + 32 * k, _mm256_permutexvar_epi8(v[k], lanes));
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

const NarrowOps kAvx512 = {measure, quantize_all, look_up, generic::widths};

} // namespace

const NarrowOps *avx512_narrow_ops() { return &kAvx512; }

} // namespace sw

#else

namespace sw {
const NarrowOps *avx512_narrow_ops() { return nullptr; }
} // namespace sw

#endif
