/* Narrow sums: a block of complete lanes to indices of 1 to 8 bits, and back. src/sumwire/kernels/lattice/narrowing.py
 * defines it. */
#pragma once
#include <limits>
#include <vector>

#include "lattice_planes.h"

namespace sw {

/* One block on its way from lanes to indices. */
struct NarrowBlock {
  const uint8_t *lanes;
  uint8_t *out; /* where packed indices go */
  int32_t top;  /* lanes are in 0..top, count * granularity */
  int8_t per_lane, log_size;
  int8_t shift; /* what brings centered lanes to 20 bits */
  int8_t room;  /* by how much top may be shifted up in 15 bits */
  size_t size() const { return size_t{1} << log_size; }
};

/* The blocks of a segment. What takes a root or a division has an array of its own, so that the compiler computes
 * several at a time: one by one they take as long as the lanes. */
struct NarrowBlocks {
  std::vector<NarrowBlock> block;
  std::vector<double> mean_gain;    /* from lanes to the mean: decode_gain / count, times 2^shift */
  std::vector<double> lanes_gain;   /* and back: count / decode_gain */
  std::vector<double> inverse_size; /* 1 / size */
  std::vector<double> squares;      /* of lanes around 0; 0: the block is zero */
  std::vector<double> rms;
  std::vector<float> relative; /* rms of the mean, relative to the scale */
  std::vector<uint8_t> coarse, fine;

  size_t size() const { return block.size(); }
  void resize(size_t n) {
    block.resize(n);
    for (auto *doubles : {&mean_gain, &lanes_gain, &inverse_size, &squares, &rms}) doubles->resize(n);
    relative.resize(n);
    coarse.resize(n);
    fine.resize(n);
  }
};

/* Up to 128 words: their low and their high bytes, as byte shuffles need them. */
struct SplitWords {
  alignas(32) uint8_t low[1 << (SW_MAX_BITS - 1)] = {}, high[1 << (SW_MAX_BITS - 1)] = {};

  void set(size_t i, uint16_t word) {
    low[i] = static_cast<uint8_t>(word);
    high[i] = static_cast<uint8_t>(word >> 8);
  }
};

/* The quantizers, by width. Vector code counts magnitudes from the largest: an index is that, or its complement. */
struct NarrowTables {
  const sw_quantizer *quantizers;
  SplitWords levels[SW_MAX_BITS + 1];
  alignas(16) uint8_t half_levels[SW_MAX_BITS + 1][16] = {}; /* level / 2, of widths that have cells */
  alignas(16) uint8_t cells[SW_MAX_BITS + 1][64];

  explicit NarrowTables(const sw_quantizer *given) : quantizers(given) {
    for (int width = 1; width <= SW_MAX_BITS; ++width) {
      const int last = (1 << (width - 1)) - 1;
      for (int j = 0; j <= last; ++j) levels[width].set(last - j, quantizers[width].levels[j]);
      for (int j = 0; quantizers[width].density && j <= last; ++j)
        half_levels[width][last - j] = static_cast<uint8_t>(quantizers[width].levels[j] / 2);
      for (int k = 0; quantizers[width].density && k < 64; ++k)
        cells[width][k] = static_cast<uint8_t>(last - quantizers[width].magnitudes[k]);
    }
  }
};

/* How magnitudes of a block become indices. */
struct NarrowGains {
  int up, down;
  int32_t gain[5]; /* of cells, or of each line */
};

struct NarrowLanes;

struct NarrowOps {
  /* Finds squares, rms and `coarse` of blocks. */
  void (*measure)(NarrowBlocks &blocks);
  /* Finds indices and `fine` of those blocks that get this width. */
  void (*quantize)(const NarrowTables &, int width, NarrowBlocks &blocks, const std::vector<uint32_t> &which);
  /* Lanes of the block that these packed indices stand for. */
  void (*look_up)(const NarrowLanes &, int width, const uint8_t *data, size_t n, uint8_t *out);
  /* Sum of the widths that blocks of these levels and lanes have at c. */
  int64_t (*widths)(const int32_t *level, const int32_t *exact, size_t n, int32_t c);
};

const NarrowOps &narrow_ops();      /* the best that this CPU runs */
const NarrowOps *avx2_narrow_ops(); /* null when not built for this architecture */
const NarrowOps *avx512_narrow_ops();

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
      const bool whole = quantizers[width].density != 0;
      for (int i = 0; i < (whole ? 2 * half : half); ++i) lanes[width].set(i, lane[width][whole ? i : half + i]);
      scheme.lattices[width].granularity = steps;
      scheme.lattices[width].lane_bits = quantizers[width].density ? 8 : 15;
    }
  }
};

namespace generic {

constexpr int kShifted = 20;
/* Mantissa bits at which the next eighth of an octave is nearer. */
constexpr uint32_t kAbove[8] = {371395, 1164243, 2028850, 2971711, 3999908, 5121164, 6343903, 7677309};

static inline uint32_t bits_of(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return bits;
}

/* floor(log2(v)) of a normal v above 0. */
static inline int log2_of(double v) {
  uint64_t bits;
  std::memcpy(&bits, &v, 8);
  return static_cast<int>(bits >> 52) - 1023;
}

/* Nearest integer, ties to even, of a v below 2^51: libm's takes ten times as long. */
static inline double nearest_whole(double v) { return (v + 0x1.8p52) - 0x1.8p52; }

static inline uint8_t coarse_of(float value) {
  const uint32_t bits = bits_of(value), mantissa = bits & 0x7FFFFF;
  int eighths = 8 * (static_cast<int>(bits >> 23) - 127);
  for (uint32_t above : kAbove) eighths += above <= mantissa;
  return static_cast<uint8_t>(std::min(std::max(kOne + eighths, 1), 255));
}

static inline uint8_t fine_of(double ratio) {
  double k;
  if (ratio < 0.875) {
    k = nearest_whole((ratio - 0.5) * 64.0);
  } else if (ratio < 1.125) {
    k = 24.0 + nearest_whole((ratio - 0.875) * 512.0);
  } else if (ratio < 1.5) {
    k = 152.0 + nearest_whole((ratio - 1.125) * 64.0);
  } else {
    const int exponent = log2_of(ratio / 1.5);
    k = 176.0 + 16.0 * exponent + nearest_whole((ratio / 1.5 * power_of_two(-exponent) - 1.0) * 16.0);
  }
  return static_cast<uint8_t>(std::min(std::max(k, 0.0), 255.0));
}

/* squares_of(block) gives the sum of squares of its lanes around 0. */
template <class SquaresOf>
static inline void measure_blocks(NarrowBlocks &blocks, const SquaresOf &squares_of) {
  const size_t n = blocks.size();
  double *const squares = blocks.squares.data(), *const rms = blocks.rms.data();
  const double *const inverse_size = blocks.inverse_size.data(), *const mean_gain = blocks.mean_gain.data();
  float *const relative = blocks.relative.data();
  for (size_t i = 0; i < n; ++i)
    squares[i] = blocks.block[i].top ? static_cast<double>(squares_of(blocks.block[i])) : 0.0;
  for (size_t i = 0; i < n; ++i) rms[i] = std::sqrt(squares[i] * inverse_size[i]);
  for (size_t i = 0; i < n; ++i) relative[i] = static_cast<float>(rms[i] * mean_gain[i]);
  for (size_t i = 0; i < n; ++i) blocks.coarse[i] = squares[i] != 0 ? coarse_of(relative[i]) : 0;
}

/* Gains of the blocks `which`, one after another. */
static inline void find_gains(const NarrowBlocks &blocks, const std::vector<uint32_t> &which,
                              const sw_quantizer &quantizer, std::vector<NarrowGains> &gains) {
  const size_t n = which.size();
  std::vector<double> inverse(n);
  gains.resize(n);
  for (size_t k = 0; k < n; ++k) {
    const NarrowBlock &block = blocks.block[which[k]];
    const int log = log2_of(blocks.rms[which[k]]);
    int exponent = 11 - log;
    if (quantizer.density && block.room >= 0) exponent = std::max<int>(block.room, 7 - log);
    exponent = std::min(exponent, 14); /* a block of few lanes other than 0: these are beyond the last level */
    gains[k].up = std::max(exponent, 0);
    gains[k].down = std::max(-exponent, 0);
    inverse[k] = blocks.rms[which[k]] * power_of_two(exponent);
  }
  for (size_t k = 0; k < n; ++k) inverse[k] = 1.0 / inverse[k];
  const auto gain_of = [](double v) { return static_cast<int32_t>(nearest_whole(std::min(v, 65535.0))); };
  for (size_t k = 0; k < n; ++k)
    if (quantizer.density)
      gains[k].gain[0] = gain_of(quantizer.density * 65536.0 * inverse[k]);
    else
      for (int line = 0; line < 5; ++line) gains[k].gain[line] = gain_of(quantizer.slopes[line] * 16.0 * inverse[k]);
}

/* quantize_block(block, gains) writes its indices and returns the sum of |lane| * level. */
template <class QuantizeBlock>
static inline void quantize_blocks(const sw_quantizer &quantizer, NarrowBlocks &blocks,
                                   const std::vector<uint32_t> &which, const QuantizeBlock &quantize_block) {
  const size_t n = which.size();
  std::vector<NarrowGains> gains;
  std::vector<double> ratio(n), product(n);
  find_gains(blocks, which, quantizer, gains);
  for (size_t k = 0; k < n; ++k) {
    const size_t i = which[k];
    const double sum = static_cast<double>(quantize_block(blocks.block[i], gains[k]));
    product[k] = sum * (static_cast<double>(coarse_value(blocks.coarse[i])) * blocks.lanes_gain[i]);
    ratio[k] = blocks.squares[i] * power_of_two(blocks.block[i].shift) * quantizer.unit;
  }
  for (size_t k = 0; k < n; ++k) ratio[k] /= product[k];
  for (size_t k = 0; k < n; ++k) blocks.fine[which[k]] = fine_of(ratio[k]);
}

static inline int64_t centered(const NarrowBlock &block, size_t i) {
  return (2 * int64_t{read_lane(block.lanes, block.per_lane, i)} - block.top) >> block.shift;
}

static inline int64_t squares_of(const NarrowBlock &block) {
  int64_t sum = 0;
  for (size_t i = 0; i < block.size(); ++i) sum += centered(block, i) * centered(block, i);
  return sum;
}

static inline void measure(NarrowBlocks &blocks) { measure_blocks(blocks, squares_of); }

static inline int64_t magnitude(const sw_quantizer &quantizer, int width, const NarrowGains &gains, int64_t lane) {
  const int64_t scaled = std::min((lane < 0 ? -lane : lane) >> gains.down, kMaxMagnitude >> gains.up) << gains.up;
  if (quantizer.density) return quantizer.magnitudes[std::min<int64_t>(scaled * gains.gain[0] >> 16, 63)];
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int k = 0; k < 5; ++k) least = std::min(least, (scaled * gains.gain[k] >> 16) + quantizer.offsets[k]);
  return std::min<int64_t>(least >> (13 - width), (1 << (width - 1)) - 1);
}

/* Returns the sum of |lane| * level. */
static inline int64_t quantize_block(const sw_quantizer &quantizer, int width, const NarrowBlock &block,
                                     const NarrowGains &gains) {
  const int64_t half = int64_t{1} << (width - 1);
  const size_t n = block.size(), group = std::min(n, kPlaneGroup);
  uint32_t run[kPlaneGroup];
  int64_t product = 0;
  std::memset(block.out, 0, n / 8 * width);
  for (size_t at = 0; at < n; at += group) {
    for (size_t i = 0; i < group; ++i) {
      const int64_t lane = centered(block, at + i), j = magnitude(quantizer, width, gains, lane);
      const bool negative = lane < 0 || (lane == 0 && tie(at + i));
      run[i] = static_cast<uint32_t>(half + (negative ? -1 - j : j));
      product += (lane < 0 ? -lane : lane) * quantizer.levels[j];
    }
    pack_bits(run, group, width, block.out, at * width);
  }
  return product;
}

static inline void quantize(const NarrowTables &tables, int width, NarrowBlocks &blocks,
                            const std::vector<uint32_t> &which) {
  const sw_quantizer &quantizer = tables.quantizers[width];
  quantize_blocks(quantizer, blocks, which, [&](const NarrowBlock &block, const NarrowGains &gains) {
    return quantize_block(quantizer, width, block, gains);
  });
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
