/* Narrow sums in 256-bit vectors: lanes below 2^15 and indices of up to 5 bits, which are what narrow sums mostly have.
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

/* 64 bytes by index: each 16 are applied as a difference to the ones before. */
struct Cells {
  Vec part[4];
  explicit Cells(const uint8_t *table) {
    for (int k = 3; k >= 0; --k) {
      part[k] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table + 16 * k)));
      if (k < 3) part[k + 1] = _mm256_xor_si256(part[k + 1], part[k]);
    }
  }
  Vec operator()(Vec index) const {
    Vec out = _mm256_shuffle_epi8(part[0], index);
    for (int k = 1; k < 4; ++k) {
      const Vec beyond = _mm256_sub_epi8(index, _mm256_set1_epi8(static_cast<char>(16 * k)));
      out = _mm256_xor_si256(out, _mm256_shuffle_epi8(part[k], beyond));
    }
    return out;
  }
};

/* Magnitudes are scaled without loss: |lane| << up is below 2^15. */
template <int Bytes>
int64_t quantize_cells(const NarrowJob &job, const NarrowGains &gains, uint8_t *indices) {
  const sw_quantizer &quantizer = *gains.quantizer;
  const Cells magnitudes(quantizer.magnitudes);
  alignas(16) uint8_t bytes[16] = {};
  for (int j = 0; j < 1 << (gains.width - 1); ++j) bytes[j] = static_cast<uint8_t>(quantizer.levels[j]);
  const Vec levels = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(bytes)));
  const Vec top = _mm256_set1_epi16(static_cast<int16_t>(job.top)), zero = _mm256_setzero_si256();
  const Vec gain = _mm256_set1_epi16(static_cast<int16_t>(gains.gain[0])), last = _mm256_set1_epi8(63);
  const Vec half = _mm256_set1_epi8(static_cast<char>(1 << (gains.width - 1)));
  const __m128i up = _mm_cvtsi32_si128(gains.up);
  const int16_t *tie = ties();
  int64_t product = 0;
  for (size_t at = 0; at < job.size(); at += 256) { /* 32 bits hold 16 sums of two products below 2^23 */
    Vec sum = zero;
    for (size_t i = at; i < at + 256; i += 32) {
      const Vec x = words<Bytes>(job.lanes, i), y = words<Bytes>(job.lanes, i + 16);
      const Vec a = _mm256_sub_epi16(_mm256_add_epi16(x, x), top), b = _mm256_sub_epi16(_mm256_add_epi16(y, y), top);
      const Vec tie_a = load(tie + i % kTiesPeriod), tie_b = load(tie + i % kTiesPeriod + 16);
      const Vec negative = _mm256_packs_epi16(_mm256_cmpgt_epi16(tie_a, a), _mm256_cmpgt_epi16(tie_b, b));
      const Vec size_a = _mm256_abs_epi16(a), size_b = _mm256_abs_epi16(b);
      const Vec cell_a = _mm256_mulhi_epu16(_mm256_sll_epi16(size_a, up), gain);
      const Vec cell_b = _mm256_mulhi_epu16(_mm256_sll_epi16(size_b, up), gain);
      const Vec j = magnitudes(_mm256_min_epu8(_mm256_packus_epi16(cell_a, cell_b), last));
      const Vec level = _mm256_shuffle_epi8(levels, j);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_a, _mm256_unpacklo_epi8(level, zero)));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(size_b, _mm256_unpackhi_epi8(level, zero)));
      const Vec index = _mm256_add_epi8(half, _mm256_xor_si256(j, negative));
      store(indices + i, _mm256_permute4x64_epi64(index, 0xD8));
    }
    product += sum_of_words(sum);
  }
  return product;
}

int64_t quantize(const NarrowJob &job, const NarrowGains &gains, uint8_t *indices) {
  const bool lossless = gains.down == 0 && job.top << gains.up < 1 << 15;
  if (!fits(job) || !gains.quantizer->density || !lossless) return generic::quantize(job, gains, indices);
  return job.per_lane == 1 ? quantize_cells<1>(job, gains, indices) : quantize_cells<2>(job, gains, indices);
}

void look_up(const uint16_t *table, int width, const uint8_t *indices, size_t n, uint8_t *out) {
  if (width > 5 || n % 32) return generic::look_up(table, width, indices, n, out);
  alignas(16) uint8_t bytes[32] = {};
  for (int z = 0; z < 1 << width; ++z) bytes[z] = static_cast<uint8_t>(table[z]);
  const Vec low = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(bytes)));
  const Vec high = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(bytes + 16)));
  const Vec change = _mm256_xor_si256(low, high), sixteen = _mm256_set1_epi8(16);
  for (size_t i = 0; i < n; i += 32) {
    const Vec index = load(indices + i);
    const Vec first = _mm256_shuffle_epi8(low, index);
    store(out + i, _mm256_xor_si256(first, _mm256_shuffle_epi8(change, _mm256_sub_epi8(index, sixteen))));
  }
}

const NarrowOps kAvx2 = {squares, quantize, look_up};

} // namespace

const NarrowOps *avx2_narrow_ops() { return &kAvx2; }

} // namespace sw

#else

namespace sw {
const NarrowOps *avx2_narrow_ops() { return nullptr; }
} // namespace sw

#endif
