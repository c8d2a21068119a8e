/* Every operation on a block in plain C++, for any size and any table.
 *
 * It is compiled once per instruction set (the compiler vectorizes much of it), and is used where there is no
 * hand-written code. */
#pragma once
#include <cstdlib>
#include <vector>

#include "lattice_planes.h"

namespace sw {
namespace generic {

/* The patterns of coordinates from .. from + n of a block: those drawn before, or drawn now. */
struct Segment {
  const uint32_t *sign, *dither;
  const uint16_t *noise;
  uint32_t drawn_sign[Patterns::kLongest], drawn_dither[Patterns::kLongest];
  uint16_t drawn_noise[Patterns::kLongest];

  Segment(const Patterns &p, const sw_keys &keys, size_t from, size_t n)
      : sign(p.sign), dither(p.dither), noise(p.noise) {
    if (from == 0) return;
    const uint32_t start = static_cast<uint32_t>(from);
    for (uint32_t i = 0; i < n; ++i) drawn_sign[i] = hash32(keys.sign, start + i) & 0x80000000u;
    for (uint32_t i = 0; i < n; ++i) drawn_dither[i] = hash32(keys.dither, start + i);
    for (uint32_t i = 0; i < n; ++i) drawn_noise[i] = static_cast<uint16_t>(hash32(keys.noise, start + i));
    sign = drawn_sign;
    dither = drawn_dither;
    noise = drawn_noise;
  }
};

/* The sum of 16 interleaved accumulators, folded pairwise. */
static inline double fold16(double (&fold)[16]) {
  for (int half = 8; half; half /= 2)
    for (int l = 0; l < half; ++l) fold[l] += fold[l + half];
  return fold[0];
}

static inline double sum_squares(const float *x, size_t n) {
  double fold[16] = {};
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int l = 0; l < 16; ++l) fold[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
  for (int l = 0; i + l < n; ++l) fold[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
  return fold16(fold);
}

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7F800000u | mantissa << 13;
  } else if (exponent) {
    bits = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

static inline void to_float(int kind, const void *src, size_t n, float *dst) {
  if (kind == SW_F64) {
    for (size_t i = 0; i < n; ++i) dst[i] = static_cast<float>(static_cast<const double *>(src)[i]);
  } else if (kind == SW_BF16) {
    for (size_t i = 0; i < n; ++i) {
      const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t *>(src)[i]) << 16;
      std::memcpy(dst + i, &bits, 4);
    }
  } else {
    for (size_t i = 0; i < n; ++i) dst[i] = half_to_float(static_cast<const uint16_t *>(src)[i]);
  }
}

/* Nearest integer, ties to even, of a float that fits. */
static inline int32_t nearest(float v) {
#if defined(__SSE4_1__) || defined(__aarch64__)
  return static_cast<int32_t>(std::nearbyintf(v));
#else
  return static_cast<int32_t>(std::lrintf(v));
#endif
}

/* Stages from distance 1 upwards, so that float results are the same bits everywhere. */
template <class T>
static inline void fwht(T *y, size_t n) {
  size_t h = 1;
  if (n > Patterns::kLongest) { /* halves first: most stages then stay in the cache */
    h = n / 2;
    fwht(y, h);
    fwht(y + h, h);
  }
  for (; h < n; h *= 2)
    for (size_t i = 0; i < n; i += 2 * h)
      for (size_t j = i; j < i + h; ++j) {
        const T a = y[j], b = y[j + h];
        y[j] = a + b;
        y[j + h] = a - b;
      }
}

/* The transform of integers whose results stay below `bound`, rounded to float and scaled. */
template <class T>
static inline void scale_rows(const DecodeJob &job, T *y, float gain, bool tiny) {
  const size_t n = size_t{1} << job.log_size;
  if (job.scheme->rotate) fwht(y, n);
  for (size_t from = 0; from < n; from += Patterns::kLongest) {
    const size_t here = std::min(n - from, Patterns::kLongest);
    const Segment segment(*job.patterns, {job.sign_key, 0, 0, 0}, from, here);
    for (size_t i = 0; i < here; ++i) {
      float v = static_cast<float>(y[from + i]) * gain;
      if (tiny) v *= kTinyDrop;
      uint32_t bits;
      std::memcpy(&bits, &v, 4);
      bits ^= segment.sign[i];
      std::memcpy(job.out + from + i, &bits, 4);
    }
  }
}

static inline void decode(const DecodeJob &job) {
  const size_t n = size_t{1} << job.log_size;
  const bool tiny = job.scale < kTinyScale;
  const float scale = tiny ? job.scale * kTinyLift : job.scale;
  const float gain = decode_gain(*job.scheme, job.cls, job.log_size, scale, job.count);
  const int64_t center = int64_t{job.count} * job.scheme->lattices[job.cls].granularity;
  if (center << job.log_size < int64_t{1} << 31) {
    for (size_t i = 0; i < n; ++i)
      job.units[i] = 2 * static_cast<int32_t>(read_lane(job.lanes, job.lane_bytes, i)) - static_cast<int32_t>(center);
    scale_rows(job, job.units, gain, tiny);
  } else {
    std::vector<int64_t> wide(n);
    for (size_t i = 0; i < n; ++i) wide[i] = 2 * int64_t{read_lane(job.lanes, job.lane_bytes, i)} - center;
    scale_rows(job, wide.data(), gain, tiny);
  }
}

/* y times c, rounded. */
static inline int64_t correct(const sw_lattice &lattice, int64_t y, int32_t correction) {
  if (lattice.rotation_bits == 16) return y + ((y * correction + (1 << 14)) >> 15);
  return y + nearest(static_cast<float>(y) * (static_cast<float>(correction) * 0x1p-15f));
}

static inline int32_t rotated(const sw_lattice &lattice, int32_t unit) {
  return lattice.rotation_bits == 16 ? static_cast<int16_t>(unit) : unit;
}

/* What clamping leaves of rotated units, and what it would leave of more; both over units of at most 16 bits are exact
 * in integers, so that vectors may add them up in any order. */
static inline void clamped_sums(const sw_lattice &lattice, const int16_t *units, size_t n, int32_t correction,
                                double &kept, double &slope) {
  constexpr size_t kRow = 16, kPair = 2 * kRow; /* 32 bits hold two products, and rows fill vectors */
  const int32_t half = half_range(lattice);
  int64_t sums[2] = {};
  for (size_t from = 0; from < n; from += kPair) {
    uint32_t keep[kRow] = {}, more[kRow] = {};
    for (size_t i = 0; i < kPair; ++i) {
      const int32_t y = std::abs(int32_t{units[from + i]}), sent = y + ((y * correction + (1 << 14)) >> 15);
      keep[i % kRow] += static_cast<uint32_t>(y * std::min(sent, half));
      more[i % kRow] += static_cast<uint32_t>(sent < half ? y * y : 0);
    }
    for (uint32_t each : keep) sums[0] += each;
    for (uint32_t each : more) sums[1] += each;
  }
  kept = static_cast<double>(sums[0]);
  slope = static_cast<double>(sums[1]);
}

static inline void clamped_sums(const sw_lattice &lattice, const int32_t *units, size_t n, int32_t correction,
                                double &kept, double &slope) {
  const int64_t half = half_range(lattice);
  double keep[16] = {}, more[16] = {};
  for (size_t i = 0; i < n; ++i) {
    const int64_t y = std::abs(int64_t{rotated(lattice, units[i])}), sent = correct(lattice, y, correction);
    const double magnitude = static_cast<double>(y);
    keep[i % 16] += magnitude * static_cast<double>(std::min(sent, half));
    more[i % 16] += sent < half ? magnitude * magnitude : 0.0;
  }
  kept = fold16(keep);
  slope = fold16(more);
}

/* (c - 1) * 2**15 of a block whose rotated units are not Gaussian: two steps of Newton's method towards the c at which
 * clamping leaves `shrink` of them. */
template <class Unit>
static inline int32_t improved_correction(const sw_lattice &lattice, const Unit *units, size_t n, int64_t squares) {
  const double energy = static_cast<double>(squares) * static_cast<double>(n);
  const int64_t least = lattice.corrections[0], most = 1 << 13;
  int64_t found = gaussian_correction(lattice, squares);
  for (int step = 0; step < 2; ++step) {
    double kept, slope;
    clamped_sums(lattice, units, n, static_cast<int32_t>(found), kept, slope);
    const double change = 32768.0 * (lattice.shrink * energy - kept) / std::max(slope, 0.05 * energy);
    found = std::min(std::max(found + static_cast<int64_t>(std::nearbyint(change)), least), most);
  }
  return static_cast<int32_t>(found);
}

/* (c - 1) * 2**15 of a block, before which its `units` have been rotated. */
static inline int32_t correction(const EncodeJob &job, int64_t squares, int64_t largest_square) {
  const sw_lattice &lattice = job.scheme->lattices[job.cls];
  if (!is_corrected(lattice)) return 0;
  const size_t n = size_t{1} << job.log_size;
  if (squares > 0 && (n < 256 || is_spiky(largest_square, squares)))
    return improved_correction(lattice, job.units, n, squares);
  return gaussian_correction(lattice, squares);
}

static inline Done encode(const EncodeJob &job) {
  const sw_scheme &scheme = *job.scheme;
  const sw_lattice &lattice = scheme.lattices[job.cls];
  const sw_table &table = scheme.tables[job.cls][job.width];
  const size_t n = size_t{1} << job.log_size;
  const bool tiny = job.scale < kTinyScale;
  const float lift = tiny ? kTinyLift : 1.0f;
  const float gain = encode_gain(scheme, job.cls, job.log_size, job.scale * lift);
  const int dither_bits = lattice.rotation_bits == 16 ? 16 : 8;
  const Patterns &patterns = *job.patterns;

  const uint32_t flip = flips(*job.keys, job.block);
  int64_t squares = 0, largest = 0;
  bool outside = false;
  for (size_t from = 0; from < n; from += Patterns::kLongest) {
    const size_t here = std::min(n - from, Patterns::kLongest);
    const Segment segment(patterns, *job.keys, from, here);
    for (size_t i = 0; i < here; ++i) {
      const float scaled = job.x[from + i] * lift * gain;
      const bool fits = std::fabs(scaled) < 0x1p31f - 0x1p17f;
      outside |= !fits;
      const int32_t fraction = static_cast<int32_t>((segment.dither[i] ^ flip) >> (32 - dither_bits));
      const int32_t unit = (nearest(fits ? scaled : 0.0f) + fraction) >> dither_bits;
      const int64_t square = int64_t{unit} * unit;
      squares += square;
      largest = std::max(largest, square);
      job.units[from + i] = segment.sign[i] ? -unit : unit;
    }
    /* Checked per segment, as the squares of a large block might overflow. */
    if (outside || (scheme.rotate ? squares : largest) > scheme.square_limit[job.log_size][job.cls])
      return Done::beyond_terms;
  }
  /* Unsigned, because the rotation wraps by design. */
  const int f = lattice.fraction_bits;
  const int64_t top = 2 * int64_t{half_range(lattice)};
  uint32_t *units = reinterpret_cast<uint32_t *>(job.units);
  if (scheme.rotate) fwht(units, n);
  const int32_t change = correction(job, squares, largest), bottom = offset(lattice, change);
  const uint32_t angle = turn(*job.keys, job.block);
  for (size_t from = 0; from < n; from += Patterns::kLongest) {
    const size_t here = std::min(n - from, Patterns::kLongest);
    const Segment segment(patterns, *job.keys, from, here);
    for (size_t i = 0; i < here; ++i) {
      const int64_t y = rotated(lattice, static_cast<int32_t>(units[from + i] + bottom));
      const int64_t position = std::min(std::max(correct(lattice, y, change), int64_t{0}), top);
      const uint64_t noise = (segment.noise[i] + angle) & 0xFFFF;
      const uint8_t index = table.lower[position >> f];
      const int64_t above = position - (int64_t{table.values[index]} << f), gap = int64_t{table.gap[index]} << f;
      const bool up = above + static_cast<int64_t>(noise * static_cast<uint64_t>(gap) >> 16) >= gap;
      job.indices[from + i] = static_cast<uint8_t>(index + up);
    }
  }
  if (job.residual) {
    std::vector<uint8_t> own(2 * n);
    for (size_t i = 0; i < n; ++i) write_lane(own.data(), 2, i, table.values[job.indices[i]]);
    std::vector<float> value(n);
    decode({job.scheme, job.patterns, job.keys->sign, own.data(), 2, 1, job.scale, job.log_size, job.cls, value.data(),
            job.units});
    for (size_t i = 0; i < n; ++i) job.residual[i] = job.x[i] - value[i];
  }
  if (n >= 8) {
    std::memset(job.out, 0, n / 8 * job.width);
    uint32_t run[kPlaneGroup];
    const size_t group = std::min(n, kPlaneGroup);
    for (size_t at = 0; at < n; at += group) {
      std::copy_n(job.indices + at, group, run);
      pack_bits(run, group, job.width, job.out, at * job.width);
    }
  }
  return Done::yes;
}

} // namespace generic
} // namespace sw
