/* What operations in 512-bit vectors share. Everything is in an unnamed namespace: see blocks.h. */
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace sw {
namespace {

using Wide = __m512i;

/* Sum of unsigned 32-bit words, in 64 bits. */
inline int64_t sum_of_words(Wide words) {
  const Wide low = _mm512_and_si512(words, _mm512_set1_epi64(0xFFFFFFFF));
  return _mm512_reduce_add_epi64(_mm512_add_epi64(low, _mm512_srli_epi64(words, 32)));
}

} // namespace
} // namespace sw
