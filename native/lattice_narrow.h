/* Narrow sums: a block of complete lanes to indices of 1 to 8 bits, and back. src/sumwire/kernels/lattice/narrowing.py
 * defines it. */
#pragma once
#include <limits>

#include "lattice_planes.h"

namespace sw {

/* The lanes of a block around 0. */
struct NarrowJob {
  const uint8_t *lanes;
  int per_lane, log_size;
  int64_t top; /* count * granularity: lanes are in 0..top */
  int shift;   /* what brings centered lanes to 20 bits */
  size_t size() const { return size_t{1} << log_size; }
};

/* Up to 128 words: their low and their high bytes, as byte shuffles need them. */
struct SplitWords {
  alignas(32) uint8_t low[1 << (SW_MAX_BITS - 1)] = {}, high[1 << (SW_MAX_BITS - 1)] = {};

  void set(const uint16_t *words, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      low[i] = static_cast<uint8_t>(words[i]);
      high[i] = static_cast<uint8_t>(words[i] >> 8);
    }
  }
};

/* The quantizers, by width. */
struct NarrowTables {
  const sw_quantizer *quantizers;
  SplitWords levels[SW_MAX_BITS + 1];

  explicit NarrowTables(const sw_quantizer *given) : quantizers(given) {
    for (int width = 1; width <= SW_MAX_BITS; ++width)
      levels[width].set(quantizers[width].levels, size_t{1} << (width - 1));
  }
};

/* How magnitudes of a block become indices. */
struct NarrowGains {
  const NarrowTables *tables;
  int width, up, down;
  int32_t gain[5]; /* of cells, or of each line */
  const sw_quantizer &quantizer() const { return tables->quantizers[width]; }
};

struct NarrowLanes;

struct NarrowOps {
  int64_t (*squares)(const NarrowJob &);
  /* Indices of the block, packed; returns the sum of |lane| * level. */
  int64_t (*quantize)(const NarrowJob &, const NarrowGains &, uint8_t *out);
  /* Lanes of the block that these packed indices stand for. */
  void (*look_up)(const NarrowLanes &, int width, const uint8_t *data, size_t n, uint8_t *out);
  /* Sum of the widths that blocks of these levels and lanes have at c. */
  int64_t (*widths)(const int32_t *level, const int32_t *exact, size_t n, int32_t c);
};

const NarrowOps &narrow_ops();      /* the best that this CPU runs */
const NarrowOps *avx2_narrow_ops(); /* null when not built for this architecture */

constexpr uint32_t kTies = 0x71E5;
constexpr size_t kTiesPeriod = 4096;
constexpr int64_t kMaxMagnitude = 32767;

/* 1 where a lane of 0 counts as negative. */
static inline uint8_t tie(size_t i) { return hash32(kTies, static_cast<uint32_t>(i % kTiesPeriod)) & 1; }

constexpr int kOne = 231; /* coarse of 1 */
constexpr float kOctave[8] = {1.0f,           0x1.172b84p+0f, 0x1.306fep+0f,  0x1.4bfdaep+0f,
                              0x1.6a09e6p+0f, 0x1.8ace54p+0f, 0x1.ae89fap+0f, 0x1.d5818ep+0f};

/* 2^exponent, of a normal double. */
static inline double power_of_two(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(1023 + exponent) << 52;
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}

static inline float coarse_value(uint8_t coarse) {
  const int eighths = static_cast<int>(coarse) - kOne;
  return coarse ? kOctave[eighths & 7] * static_cast<float>(power_of_two(eighths >> 3)) : 0.0f;
}

static inline double fine_value(uint8_t fine) {
  const int k = fine, beyond = k - 176;
  if (k < 24) return 0.5 + k / 64.0;
  if (k < 152) return 0.875 + (k - 24) / 512.0;
  if (beyond < 0) return 1.125 + (k - 152) / 64.0;
  return 1.5 * ((1.0 + (beyond & 15) / 16.0) * power_of_two(beyond >> 4));
}

/* Narrow blocks as lanes of one payload, on a lattice of 255 or 32767 steps. */
struct NarrowLanes {
  sw_scheme scheme;
  uint16_t lane[SW_MAX_BITS + 1][1 << SW_MAX_BITS]; /* by width and index */
  SplitWords lanes[SW_MAX_BITS + 1];                /* the same, of widths from 6 on the upper half */

  NarrowLanes(const sw_scheme &like, const sw_quantizer *quantizers) : scheme(like) {
    for (int width = 1; width <= SW_MAX_BITS; ++width) {
      const int half = 1 << (width - 1), steps = quantizers[width].density ? 255 : kMaxMagnitude;
      for (int j = 0; j < half; ++j) {
        lane[width][half + j] = static_cast<uint16_t>((steps + quantizers[width].levels[j]) / 2);
        lane[width][half - 1 - j] = static_cast<uint16_t>((steps - quantizers[width].levels[j]) / 2);
      }
      if (quantizers[width].density)
        lanes[width].set(lane[width], 2 * static_cast<size_t>(half));
      else
        lanes[width].set(lane[width] + half, static_cast<size_t>(half));
      scheme.lattices[width].granularity = steps;
      scheme.lattices[width].lane_bits = quantizers[width].density ? 8 : 15;
    }
  }
};

namespace generic {

static inline int64_t centered(const NarrowJob &job, size_t i) {
  return (2 * int64_t{read_lane(job.lanes, job.per_lane, i)} - job.top) >> job.shift;
}

static inline int64_t squares(const NarrowJob &job) {
  int64_t sum = 0;
  for (size_t i = 0; i < job.size(); ++i) sum += centered(job, i) * centered(job, i);
  return sum;
}

static inline int64_t magnitude(const NarrowGains &gains, int64_t lane) {
  const sw_quantizer &quantizer = gains.quantizer();
  const int64_t scaled = std::min((lane < 0 ? -lane : lane) >> gains.down, kMaxMagnitude >> gains.up) << gains.up;
  if (quantizer.density) return quantizer.magnitudes[std::min<int64_t>(scaled * gains.gain[0] >> 16, 63)];
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int k = 0; k < 5; ++k) least = std::min(least, (scaled * gains.gain[k] >> 16) + quantizer.offsets[k]);
  return std::min<int64_t>(least >> (13 - gains.width), (1 << (gains.width - 1)) - 1);
}

static inline int64_t quantize(const NarrowJob &job, const NarrowGains &gains, uint8_t *out) {
  const int64_t half = int64_t{1} << (gains.width - 1);
  const size_t n = job.size(), group = std::min(n, kPlaneGroup);
  uint32_t run[kPlaneGroup];
  int64_t product = 0;
  std::memset(out, 0, n / 8 * gains.width);
  for (size_t at = 0; at < n; at += group) {
    for (size_t i = 0; i < group; ++i) {
      const int64_t lane = centered(job, at + i), j = magnitude(gains, lane);
      const bool negative = lane < 0 || (lane == 0 && tie(at + i));
      run[i] = static_cast<uint32_t>(half + (negative ? -1 - j : j));
      product += (lane < 0 ? -lane : lane) * gains.quantizer().levels[j];
    }
    pack_bits(run, group, gains.width, out, at * gains.width);
  }
  return product;
}

static inline void look_up(const NarrowLanes &narrow, int width, const uint8_t *data, size_t n, uint8_t *out) {
  const int per_lane = lane_bytes(narrow.scheme.lattices[width]);
  const size_t group = std::min(n, kPlaneGroup);
  uint32_t run[kPlaneGroup];
  for (size_t at = 0; at < n; at += group) {
    unpack_bits(data, at * width, group, width, run);
    for (size_t i = 0; i < group; ++i) write_lane(out, per_lane, at + i, narrow.lane[width][run[i]]);
  }
}

static inline int32_t width_at(int32_t level, int32_t exact, int32_t c) {
  const int32_t wish = std::max((level + c) >> 16, 1);
  return wish >= exact ? exact : std::min(wish, SW_MAX_BITS);
}

static inline int64_t widths(const int32_t *level, const int32_t *exact, size_t n, int32_t c) {
  constexpr size_t kRun = 1 << 16; /* 32 bits hold the sum of this many */
  int64_t sum = 0;
  for (size_t from = 0; from < n; from += kRun) {
    int32_t here = 0;
    for (size_t i = from; i < std::min(from + kRun, n); ++i) here += width_at(level[i], exact[i], c);
    sum += here;
  }
  return sum;
}

} // namespace generic
} // namespace sw
