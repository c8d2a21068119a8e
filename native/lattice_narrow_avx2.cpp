/* Narrow sums in 256-bit vectors, of lanes below 2^15. */
#include "lattice_generic.h"

#include "lattice_narrow.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "narrow_quantize256.h"

namespace sw {
namespace {

void measure(NarrowBlocks &blocks) { generic::measure_blocks(blocks, squares_of); }

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
