/* Encoding in int32, for even tables whose steps are too fine for int16; and what comes after any. */
#pragma once
#include "rotate256.h"

namespace sw {
namespace {

/* From indices to the payload, and to what it leaves over. */
template <int L>
void send(const EncodeJob &job) {
  constexpr size_t n = size_t{1} << L;
  const sw_lattice &lattice = job.scheme->lattices[job.cls];
  pack_indices(job, n);
  if (!job.residual) return;
  if (!is_even(lattice, job.width)) {
    const Lookup<2> values(job.scheme->tables[job.cls][job.width].bytes64 + 64);
    for (size_t i = 0; i < n; i += 32) store(job.indices + i, values(load(job.indices + i)));
  }
  const float gain = decode_gain(*job.scheme, job.cls, L, job.scale, 1);
  bytes_to_floats<L>(job.indices, lattice.granularity, gain, job.patterns->sign, job.x, job.residual);
}

/* One stage within a register of eight int32. */
template <int H>
inline Vec within(Vec v) {
  const Vec other = H == 1   ? _mm256_shuffle_epi32(v, 0xB1)
                    : H == 2 ? _mm256_shuffle_epi32(v, 0x4E)
                             : _mm256_permute2x128_si256(v, v, 1);
  const Vec sign = H == 1   ? _mm256_setr_epi32(1, -1, 1, -1, 1, -1, 1, -1)
                   : H == 2 ? _mm256_setr_epi32(1, 1, -1, -1, 1, 1, -1, -1)
                            : _mm256_setr_epi32(1, 1, 1, 1, -1, -1, -1, -1);
  return _mm256_add_epi32(other, _mm256_sign_epi32(v, sign));
}

/* int32 all the way, for even tables whose steps are too fine for int16. */
template <int L>
Done encode_wide(const EncodeJob &job) {
  const sw_scheme &scheme = *job.scheme;
  const sw_lattice &lattice = scheme.lattices[job.cls];
  constexpr size_t n = size_t{1} << L;
  alignas(64) int32_t y[n];
  const __m256 gain = _mm256_set1_ps(encode_gain(scheme, job.cls, L, job.scale));
  const Vec half = _mm256_zextsi128_si256(_mm_cvtsi32_si128(half_range(lattice)));
  const Vec flips_here = _mm256_set1_epi32(static_cast<int32_t>(flips(*job.keys, job.block)));
  Vec squares = _mm256_setzero_si256();
  for (size_t i = 0; i < n; i += 8) {
    fetch(job.x + kAhead + i);
    const Vec fixed = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(job.x + i), gain));
    const Vec dither = _mm256_srli_epi32(_mm256_xor_si256(load(job.patterns->dither + i), flips_here), 24);
    const Vec unit = _mm256_srai_epi32(_mm256_add_epi32(fixed, dither), 8);
    const Vec odd = _mm256_srli_epi64(unit, 32);
    squares = _mm256_add_epi64(squares, _mm256_add_epi64(_mm256_mul_epi32(unit, unit), _mm256_mul_epi32(odd, odd)));
    const Vec flip = _mm256_srai_epi32(load(job.patterns->sign + i), 31);
    Vec v = _mm256_sub_epi32(_mm256_xor_si256(unit, flip), flip);
    if (i == 0) v = _mm256_add_epi32(v, half); /* which the transform adds to every coordinate */
    store(y + i, within<4>(within<2>(within<1>(v))));
  }
  alignas(32) int64_t parts[4];
  store(parts, squares);
  if (parts[0] + parts[1] + parts[2] + parts[3] > scheme.square_limit[L][job.cls]) return Done::beyond_terms;
  for (size_t h = 8; h < n; h *= 2)
    for (size_t base = 0; base < n; base += 2 * h)
      for (size_t i = base; i < base + h; i += 8) {
        const Vec a = load(y + i), b = load(y + i + h);
        store(y + i, _mm256_add_epi32(a, b));
        store(y + i + h, _mm256_sub_epi32(a, b));
      }
  const __m128i f = _mm_cvtsi32_si128(lattice.fraction_bits);
  const Vec top = _mm256_set1_epi32(2 * half_range(lattice)), zero = _mm256_setzero_si256();
  const __m128i angle = _mm_set1_epi16(static_cast<int16_t>(turn(*job.keys, job.block)));
  const Vec first_bytes = _mm256_set1_epi32(0x0C080400);
  for (size_t i = 0; i < n; i += 8) {
    const Vec position = _mm256_min_epi32(_mm256_max_epi32(load(y + i), zero), top);
    const __m128i word = _mm_loadu_si128(reinterpret_cast<const __m128i *>(job.patterns->noise + i));
    const Vec noise = _mm256_srli_epi32(_mm256_sll_epi32(_mm256_cvtepu16_epi32(_mm_add_epi16(word, angle)), f), 16);
    const Vec index = _mm256_srl_epi32(_mm256_add_epi32(position, noise), f);
    const Vec bytes = _mm256_shuffle_epi8(index, first_bytes);
    const int32_t low = _mm256_extract_epi32(bytes, 0), high = _mm256_extract_epi32(bytes, 4);
    std::memcpy(job.indices + i, &low, 4);
    std::memcpy(job.indices + i + 4, &high, 4);
  }
  send<L>(job);
  return Done::yes;
}

} // namespace
} // namespace sw
