/* The steps of inserting and peeling with 512-bit vectors. */
#include "sketch_steps.h"

#if defined(__AVX512BW__) && defined(__AVX512VBMI__) && defined(__AVX512VNNI__)

namespace sw {
namespace {

using Wide = __m512i;
using Half = __m256i;

inline Half load8(const uint32_t *p) { return _mm256_loadu_si256(reinterpret_cast<const Half *>(p)); }
inline void store8(uint32_t *p, Half v) { _mm256_storeu_si256(reinterpret_cast<Half *>(p), v); }
inline __mmask8 upto(size_t n) { return static_cast<__mmask8>(n < 8 ? (1u << n) - 1 : 255); }
inline __mmask8 pure(const SketchView &view, Wide items) {
  const Wide counts = _mm512_and_si512(items, _mm512_set1_epi64(static_cast<long long>(view.counts())));
  return _mm512_cmpeq_epi64_mask(counts, _mm512_set1_epi64(1));
}
inline Wide gather(__mmask8 mask, Wide at, const void *from) {
  return _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), mask, at, from, 8);
}

size_t heads(const uint32_t *at, size_t n, int log_block, uint32_t *first) {
  const Wide lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m128i shift = _mm_cvtsi32_si128(log_block);
  size_t found = n > 0;
  first[0] = 0;
  for (size_t i = 1; i < n; i += 16) {
    const __mmask16 here = static_cast<__mmask16>(n - i < 16 ? (1u << (n - i)) - 1 : 0xFFFF);
    const Wide changed =
        _mm512_xor_si512(_mm512_maskz_loadu_epi32(here, at + i), _mm512_maskz_loadu_epi32(here, at + i - 1));
    const __mmask16 good = _mm512_cmpneq_epi32_mask(_mm512_srl_epi32(changed, shift), _mm512_setzero_si512());
    const Wide places = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(i)));
    _mm512_storeu_si512(first + found, _mm512_maskz_compress_epi32(good, places));
    found += static_cast<size_t>(__builtin_popcount(good));
  }
  return found;
}

size_t pick(const SketchView &view, const uint32_t *queue, size_t n, Batch &batch) {
  size_t found = 0;
  for (size_t k = 0; k < n; k += 8) {
    const __mmask8 here = upto(n - k);
    const Half cells = _mm256_maskz_loadu_epi32(here, queue + k);
    const Wide at = _mm512_slli_epi64(_mm512_cvtepu32_epi64(cells), 1);
    const Wide items = gather(here, at, reinterpret_cast<const uint64_t *>(view.cells) + 1);
    const __mmask8 good = pure(view, items);
    _mm512_storeu_si512(batch.items + found, _mm512_maskz_compress_epi64(good, items));
    store8(batch.from + found, _mm256_maskz_compress_epi32(good, cells));
    found += static_cast<size_t>(__builtin_popcount(good));
  }
  return found;
}

void locate(const SketchView &view, size_t found, Batch &batch) {
  const __m128i log_block = _mm_cvtsi32_si128(view.log_block), rest = _mm_cvtsi32_si128(32 - view.log_block);
  const Wide lanes = _mm512_set1_epi64((1 << view.log_block) - 1), low = _mm512_set1_epi64(0xFFFFFFFF);
  const Wide even = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), odd = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  for (size_t k = 0; k < found; k += 8) {
    const __mmask8 here = upto(found - k);
    const Wide items = _mm512_loadu_si512(batch.items + k), upper = _mm512_srli_epi64(items, 32);
    const Wide from = _mm512_cvtepu32_epi64(load8(batch.from + k));
    const Wide values = gather(here, _mm512_slli_epi64(from, 1), view.cells);
    _mm512_storeu_si512(batch.taken + k, _mm512_permutex2var_epi64(values, even, items));
    _mm512_storeu_si512(batch.taken + k + 4, _mm512_permutex2var_epi64(values, odd, items));
    const Wide run = _mm512_slli_epi64(_mm512_srl_epi64(upper, log_block), 1);
    const Wide lane = _mm512_and_si512(upper, lanes);
    const Wide place = _mm512_srl_epi64(_mm512_and_si512(items, low), rest);
    const Wide left = gather(here, run, view.runs), right = gather(here, run, view.runs->begin + 2);
    store8(batch.cells[0] + k, _mm512_cvtepi64_epi32(_mm512_add_epi64(left, lane)));
    store8(batch.cells[1] + k, _mm512_cvtepi64_epi32(_mm512_add_epi64(_mm512_srli_epi64(left, 32), lane)));
    store8(batch.cells[2] + k, _mm512_cvtepi64_epi32(_mm512_add_epi64(right, lane)));
    store8(batch.index + k, _mm512_cvtepi64_epi32(_mm512_add_epi64(_mm512_srli_epi64(right, 32), place)));
  }
}

size_t push(const SketchView &view, size_t found, uint64_t limit, const Batch &batch, uint32_t *queue) {
  size_t count = 0;
  for (int t = 0; t < TABLES; ++t) {
    const Half before = _mm256_set1_epi32(static_cast<int>(t * view.table + limit));
    for (size_t k = 0; k < found; k += 8) {
      const Half cells = load8(batch.cells[t] + k);
      const __mmask8 good =
          upto(found - k) & pure(view, _mm512_loadu_si512(batch.seen[t] + k)) & _mm256_cmplt_epu32_mask(cells, before);
      store8(queue + count, _mm256_maskz_compress_epi32(good, cells));
      count += static_cast<size_t>(__builtin_popcount(good));
    }
  }
  return count;
}

const SketchSteps kAvx512 = {heads, pick, locate, push};

} // namespace

const SketchSteps *sketch_avx512_steps() { return &kAvx512; }

} // namespace sw

#else

namespace sw {
const SketchSteps *sketch_avx512_steps() { return nullptr; }
} // namespace sw

#endif
