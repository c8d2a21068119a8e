/* Walsh butterflies and lookups in 256-bit vectors, and the way from sums back to floats.
 *
 * A run of 32 coordinates (index bits e4..e0) is kept in two registers; one butterfly works across
 * registers, and an unpack then trades a lane bit for the register bit, so that lane bits come up in
 * turn. Bits above e4 choose the register pair and need no shuffles. Butterflies on wrapping int16
 * are exact, so their order is free. */
#pragma once
#include "planes256.h"

namespace sw {
namespace {

inline void butterfly(Vec &a, Vec &b) {
  const Vec s = _mm256_add_epi16(a, b);
  b = _mm256_sub_epi16(a, b);
  a = s;
}
/* Register bit r and lane bits (l2 l1 l0) become l2 and (l1 l0 r). */
inline void trade16(Vec &a, Vec &b) {
  const Vec lo = _mm256_unpacklo_epi16(a, b);
  b = _mm256_unpackhi_epi16(a, b);
  a = lo;
}
/* The register bit and the bit that chooses the 128-bit half change places. */
inline void trade128(Vec &a, Vec &b) {
  const Vec lo = _mm256_permute2x128_si256(a, b, 0x20);
  b = _mm256_permute2x128_si256(a, b, 0x31);
  a = lo;
}
template <int R>
inline void butterflies(Vec (&v)[R]) {
  for (int h = 1; h < R; h *= 2)
    for (int i = 0; i < R; ++i)
      if (!(i & h)) butterfly(v[i], v[i + h]);
}

/* The first 16 * Parts of 64 bytes. Each further 16 are applied as a difference to the ones before:
 * where index < 16 k, index - 16 k is negative and the shuffle gives 0. */
template <int Parts>
struct Lookup {
  Vec part[Parts];
  explicit Lookup(const uint8_t *table) {
    for (int k = Parts - 1; k >= 0; --k) {
      part[k] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table + 16 * k)));
      if (k + 1 < Parts) part[k + 1] = _mm256_xor_si256(part[k + 1], part[k]);
    }
  }
  Vec operator()(Vec index) const {
    Vec out = _mm256_shuffle_epi8(part[0], index);
    for (int k = 1; k < Parts; ++k) {
      const Vec beyond = _mm256_sub_epi8(index, _mm256_set1_epi8(static_cast<char>(16 * k)));
      out = _mm256_xor_si256(out, _mm256_shuffle_epi8(part[k], beyond));
    }
    return out;
  }
};

/* Sums in bytes to coordinates. */

/* 128 lanes, at most 255 each, through seven stages: below 2^15. Runs end in natural order. */
inline void transform128(Vec (&v)[4], int16_t *y) {
  Vec a[4], b[4];
  const Vec zero = _mm256_setzero_si256();
  for (int k = 0; k < 4; ++k) {
    a[k] = _mm256_unpacklo_epi8(v[k], zero); /* registers e3, lanes (e4 | e2 e1 e0) */
    b[k] = _mm256_unpackhi_epi8(v[k], zero);
    for (int stage = 0; stage < 4; ++stage) { /* e3, e2, e1, e0, and back to the start */
      butterfly(a[k], b[k]);
      trade16(a[k], b[k]);
    }
    trade128(a[k], b[k]);
    butterfly(a[k], b[k]); /* e4 */
  }
  butterflies(a);
  butterflies(b);
  for (int k = 0; k < 4; ++k) {
    store(y + 32 * k, a[k]);
    store(y + 32 * k + 16, b[k]);
  }
}

/* Column o of rows of 128 after seven stages, through the other log2(R). With Split, `high` counts
 * 128-fold: lanes above 255 are transformed as seven low bits and the rest. */
template <int R, bool Split>
inline void widen_rows(const int16_t *y, const int16_t *high, size_t o, Vec (&v)[R]) {
  const auto words = [](const int16_t *from) {
    return _mm256_cvtepi16_epi32(_mm_load_si128(reinterpret_cast<const __m128i *>(from)));
  };
  for (int r = 0; r < R; ++r) {
    v[r] = words(y + 128 * r + o);
    if (Split) v[r] = _mm256_add_epi32(v[r], _mm256_slli_epi32(words(high + 128 * r + o), 7));
  }
  for (int h = 1; h < R; h *= 2)
    for (int i = 0; i < R; ++i)
      if (!(i & h)) {
        const Vec s = _mm256_add_epi32(v[i], v[i + h]);
        v[i + h] = _mm256_sub_epi32(v[i], v[i + h]);
        v[i] = s;
      }
}

/* Rows of 128 after seven stages to (2 * sum - center) * gain * sign, or x minus that. The center only
 * moves coordinate 0 of the transform. */
template <int L, bool Split>
void finish_floats(const int16_t *y, const int16_t *high, int64_t center, float gain, const uint32_t *sign,
                   const float *x, float *out) {
  constexpr size_t n = size_t{1} << L;
  constexpr int R = 1 << (L - 7);
  alignas(64) float value[n];
  const __m256 twice = _mm256_set1_ps(2.0f * gain);
  const Vec middle = _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int32_t>(center << L >> 1)));
  for (size_t o = 0; o < 128; o += 8) {
    Vec v[R];
    widen_rows<R, Split>(y, high, o, v);
    if (o == 0) v[0] = _mm256_sub_epi32(v[0], middle);
    for (int r = 0; r < R; ++r) {
      const size_t at = 128 * r + o;
      const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(v[r]), twice);
      const __m256 f = _mm256_xor_ps(scaled, _mm256_castsi256_ps(load(sign + at)));
      if (x) /* x may be out: these 8 are read before they are written */
        _mm256_storeu_ps(out + at, _mm256_sub_ps(_mm256_loadu_ps(x + at), f));
      else
        _mm256_store_ps(value + at, f);
    }
  }
  if (x) return;
  if (reinterpret_cast<uintptr_t>(out) % 16) {
    std::memcpy(out, value, sizeof value);
  } else { /* past the caches: a tensor is read much later than it is written. NumPy aligns to 16. */
    for (size_t i = 0; i < n; i += 4) _mm_stream_ps(out + i, _mm_load_ps(value + i));
  }
}

template <int L>
void bytes_to_floats(const uint8_t *lanes, int64_t center, float gain, const uint32_t *sign, const float *x,
                     float *out) {
  alignas(64) int16_t y[size_t{1} << L];
  for (size_t at = 0; at < size_t{1} << L; at += 128) {
    Vec v[4];
    for (int k = 0; k < 4; ++k) v[k] = load(lanes + at + 32 * k);
    transform128(v, y + at);
  }
  finish_floats<L, false>(y, nullptr, center, gain, sign, x, out);
}

template <int L>
void words_to_floats(const uint8_t *lanes, int64_t center, float gain, const uint32_t *sign, float *out) {
  alignas(64) int16_t y[size_t{1} << L], high[size_t{1} << L];
  const Vec low7 = _mm256_set1_epi16(127);
  for (size_t at = 0; at < size_t{1} << L; at += 128) {
    Vec low[4], top[4];
    for (int k = 0; k < 4; ++k) {
      const Vec a = load(lanes + 2 * (at + 32 * k)), b = load(lanes + 2 * (at + 32 * k) + 32);
      low[k] = bytes_of(_mm256_and_si256(a, low7), _mm256_and_si256(b, low7));
      top[k] = bytes_of(_mm256_srli_epi16(a, 7), _mm256_srli_epi16(b, 7));
    }
    transform128(low, y + at);
    transform128(top, high + at);
  }
  finish_floats<L, true>(y, high, center, gain, sign, nullptr, out);
}

void decode(const DecodeJob &job) {
  const int64_t center = int64_t{job.count} * job.scheme->lattices[job.cls].granularity;
  const int lane_bits = job.scheme->lattices[job.cls].lane_bits;
  if (!job.scheme->rotate || job.scale < kTinyScale || job.log_size < 8 || job.log_size > 12 || lane_bits > 15)
    return generic::decode(job);
  const float gain = decode_gain(*job.scheme, job.cls, job.log_size, job.scale, job.count);
  const uint32_t *sign = job.patterns->sign;
  const bool bytes = job.lane_bytes == 1;
  with_size(job.log_size, [&](auto log_size) {
    if (bytes)
      bytes_to_floats<log_size>(job.lanes, center, gain, sign, nullptr, job.out);
    else
      words_to_floats<log_size>(job.lanes, center, gain, sign, job.out);
  });
}

} // namespace
} // namespace sw
