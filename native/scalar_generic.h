/* The operations of scalar.h in plain C++ with short vectors, compiled once per instruction set.
 *
 * Everything is in an anonymous namespace: were it shared, the linker might keep a copy that older CPUs
 * cannot run. */
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "blocks.h"
#include "scalar.h"

namespace sw {
namespace {
namespace scalar {

typedef float Eight __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));
typedef int32_t Mask __attribute__((vector_size(32)));

/* By reference: how vectors are passed by value depends on the instruction set, and compilers warn. */
inline void load8(Eight &v, const float *p) { std::memcpy(&v, p, sizeof v); }
inline void store8(float *p, const Eight &v) { std::memcpy(p, &v, sizeof v); }

/* A sum of products in float64: 16 interleaved accumulators, folded pairwise at the end. */
struct Fold16 {
  Doubles part[2] = {};

  void add8(int half, const Eight &a, const Eight &b) {
    part[half] += __builtin_convertvector(a, Doubles) * __builtin_convertvector(b, Doubles);
  }
  /* The last few, fewer than 16. */
  void add(const float *a, const float *b, size_t n) {
    for (size_t l = 0; l < n; ++l) part[l / 8][l % 8] += static_cast<double>(a[l]) * static_cast<double>(b[l]);
  }
  double total() const {
    double fold[16];
    std::memcpy(fold, part, sizeof fold);
    for (int half = 8; half; half /= 2)
      for (int l = 0; l < half; ++l) fold[l] += fold[l + half];
    return fold[0];
  }
};

void summarize(const float *x, size_t n, float *low, float *high, double *squares) {
  float lo = x[0], hi = x[0];
  Fold16 fold;
  size_t i = 0;
  if (n >= 16) {
    Eight los[2], his[2];
    for (int h = 0; h < 2; ++h) load8(los[h], x + 8 * h);
    his[0] = los[0];
    his[1] = los[1];
    for (; i + 16 <= n; i += 16)
      for (int h = 0; h < 2; ++h) {
        Eight v;
        load8(v, x + i + 8 * h);
        los[h] = v < los[h] ? v : los[h];
        his[h] = v > his[h] ? v : his[h];
        fold.add8(h, v, v);
      }
    for (int l = 0; l < 16; ++l) {
      lo = std::min(lo, los[l / 8][l % 8]);
      hi = std::max(hi, his[l / 8][l % 8]);
    }
  }
  fold.add(x + i, x + i, n - i);
  for (; i < n; ++i) {
    lo = std::min(lo, x[i]);
    hi = std::max(hi, x[i]);
  }
  *low = lo + 0.0f; /* -0 becomes 0 */
  *high = hi + 0.0f;
  *squares = fold.total();
}

/* Walsh-Hadamard in the reference's order: stages from distance 1 upwards. */

/* One stage within a register: partners are added, and the upper one's own sign is flipped first. */
template <int H>
inline void stage(Eight &v) {
  const Mask upper = {0, H == 1, H == 2, H != 4, H == 4, H != 2, H != 1, 1};
#if defined(__clang__)
  const Eight partner = __builtin_shufflevector(v, v, 0 ^ H, 1 ^ H, 2 ^ H, 3 ^ H, 4 ^ H, 5 ^ H, 6 ^ H, 7 ^ H);
#else
  const Eight partner = __builtin_shuffle(v, Mask{0 ^ H, 1 ^ H, 2 ^ H, 3 ^ H, 4 ^ H, 5 ^ H, 6 ^ H, 7 ^ H});
#endif
  v = partner + (Eight)((Mask)v ^ (upper << 31));
}

inline void butterfly(Eight &a, Eight &b) {
  const Eight sum = a + b;
  b = a - b;
  a = sum;
}

inline void first_six_stages(float *y) {
  Eight v[8];
  for (int k = 0; k < 8; ++k) {
    load8(v[k], y + 8 * k);
    stage<1>(v[k]);
    stage<2>(v[k]);
    stage<4>(v[k]);
  }
  for (int h = 1; h < 8; h *= 2)
    for (int k = 0; k < 8; ++k)
      if (!(k & h)) butterfly(v[k], v[k + h]);
  for (int k = 0; k < 8; ++k) store8(y + 8 * k, v[k]);
}

inline void transform(float *y, size_t n) {
  size_t h = 1;
  if (n > Patterns::kLongest) { /* halves first: most stages then stay in the cache */
    h = n / 2;
    transform(y, h);
    transform(y + h, h);
  } else if (n >= 64) {
    for (size_t i = 0; i < n; i += 64) first_six_stages(y + i);
    for (h = 64; 4 * h <= n; h *= 4) /* two stages at a time */
      for (size_t i = 0; i < n; i += 4 * h)
        for (size_t j = i; j < i + h; j += 8) {
          Eight v[4];
          for (int k = 0; k < 4; ++k) load8(v[k], y + j + k * h);
          butterfly(v[0], v[1]);
          butterfly(v[2], v[3]);
          butterfly(v[0], v[2]);
          butterfly(v[1], v[3]);
          for (int k = 0; k < 4; ++k) store8(y + j + k * h, v[k]);
        }
  }
  for (; h < n; h *= 2)
    for (size_t i = 0; i < n; i += 2 * h)
      for (size_t j = i; j < i + h; ++j) {
        const float a = y[j], b = y[j + h];
        y[j] = a + b;
        y[j + h] = a - b;
      }
}

/* out = x times factor, flipped where the key says so. signs: what it says, or null. */
inline void scale_and_flip(const float *x, size_t n, float factor, uint32_t key, const uint32_t *signs, float *out) {
  for (size_t i = 0; i < n; ++i) {
    const float v = x[i] * factor;
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    bits ^= signs ? signs[i] : hash32(key, static_cast<uint32_t>(i)) & 0x80000000u;
    std::memcpy(out + i, &bits, 4);
  }
}

void rotate(const float *x, size_t n, uint32_t key, const uint32_t *signs, bool inverse, float *out) {
  const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  if (inverse) {
    std::memmove(out, x, n * sizeof(float)); /* out may be x */
    transform(out, n);
    scale_and_flip(out, n, norm, key, signs, out);
  } else {
    scale_and_flip(x, n, 1.0f, key, signs, out);
    transform(out, n);
    for (size_t i = 0; i < n; ++i) out[i] *= norm;
  }
}

void quantize(const float *x, size_t n, double low, double gain, uint32_t levels, uint32_t key, uint32_t first,
              const uint32_t *noise, uint16_t *index) {
  constexpr size_t kRun = 256;
  int32_t above[kRun];
  const int32_t top = static_cast<int32_t>(levels - 1);
  for (size_t at = 0; at < n; at += kRun) {
    const size_t here = std::min(kRun, n - at);
    uint32_t drawn[kRun];
    if (!noise)
      for (size_t i = 0; i < here; ++i) drawn[i] = hash32(key, first + static_cast<uint32_t>(at + i));
    const uint32_t *word = noise ? noise + at : drawn;
    for (size_t i = 0; i < here; ++i) {
      /* Through a signed word, which every instruction set converts; 2^31 is then added back. */
      const double chance = (static_cast<double>(static_cast<int32_t>(word[i] ^ 0x80000000u)) + 2147483648.0) * 0x1p-32;
      above[i] = static_cast<int32_t>((static_cast<double>(x[at + i]) - low) * gain + chance);
    }
    for (size_t i = 0; i < here; ++i) index[at + i] = static_cast<uint16_t>(above[i] < top ? above[i] : top);
  }
}

void dequantize(const uint16_t *index, size_t n, double low, double step, float *out) {
  for (size_t i = 0; i < n; ++i)
    out[i] = static_cast<float>(low + static_cast<double>(static_cast<int32_t>(index[i])) * step);
}

/* 32 indices: how many edges lie below. For vectors, comparing with all is faster than searching. */
inline void count_edges(const float *x, float gain, const float *edges, int count, uint16_t *index) {
  typedef uint16_t Indices __attribute__((vector_size(16)));
  Eight scaled[4];
  Mask found[4] = {};
  for (int k = 0; k < 4; ++k) {
    load8(scaled[k], x + 8 * k);
    scaled[k] *= gain;
  }
  for (int e = 0; e < count; ++e)
    for (int k = 0; k < 4; ++k) found[k] -= scaled[k] > edges[e];
  for (int k = 0; k < 4; ++k) {
    const Indices narrow = __builtin_convertvector(found[k], Indices);
    std::memcpy(index + 8 * k, &narrow, sizeof narrow);
  }
}

void look_up(const uint16_t *index, size_t n, float scale, const float *centers, float *out) {
  for (size_t i = 0; i < n; ++i) out[i] = centers[index[i]] * scale;
}

double nearest(const float *x, size_t n, float gain, const float *edges, const float *centers, int bits,
               uint16_t *index) {
  constexpr size_t kRun = 256;
  const int count = (1 << bits) - 1;
  Fold16 fold;
  for (size_t at = 0; at < n; at += kRun) {
    const size_t here = std::min(kRun, n - at);
    alignas(64) float picked[kRun];
    size_t i = 0;
    for (; i + 32 <= here; i += 32) count_edges(x + at + i, gain, edges, count, index + at + i);
    for (; i < here; ++i) {
      index[at + i] = 0;
      for (int e = 0; e < count; ++e) index[at + i] += x[at + i] * gain > edges[e];
    }
    look_up(index + at, here, 1.0f, centers, picked);
    for (i = 0; i + 16 <= here; i += 16)
      for (int h = 0; h < 2; ++h) {
        Eight v, center;
        load8(v, x + at + i + 8 * h);
        load8(center, picked + i + 8 * h);
        fold.add8(h, v, center);
      }
    fold.add(x + at + i, picked + i, here - i);
  }
  return fold.total();
}

} // namespace scalar

const ScalarOps kScalar = {scalar::summarize,  scalar::rotate,  scalar::quantize,
                           scalar::dequantize, scalar::nearest, scalar::look_up};

} // namespace
} // namespace sw
