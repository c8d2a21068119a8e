/* The operations on one block that exist per instruction set, and the arithmetic they share.
 *
 * This header is compiled once per instruction set. Its functions are static: if they were merely
 * inline, the linker might keep a copy that older CPUs cannot run. */
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "sumwire.h"

namespace sw {

constexpr size_t kPlaneGroup = 256;
constexpr float kTinyScale = 0x1p-90f;
constexpr float kTinyLift = 0x1p64f;
constexpr float kTinyDrop = 0x1p-64f;

static inline uint32_t hash32(uint32_t key, uint32_t counter) {
  uint32_t h = counter * 0x9E3779B9u + key;
  h ^= h >> 16;
  h *= 0x7FEB352Du;
  h ^= h >> 15;
  h *= 0x846CA68Bu;
  return h ^ h >> 16;
}

/* Random patterns within a block, drawn once per call: all blocks of a round share them. */
struct Patterns {
  static constexpr size_t kLongest = 4096; /* beyond this they are drawn as they are needed */
  alignas(64) uint32_t sign[kLongest];     /* 0x80000000 where the coordinate is flipped */
  alignas(64) uint32_t dither[kLongest];   /* whole words: the top bits are used */
  alignas(64) uint16_t noise[kLongest];
  alignas(64) int32_t half_dither[kLongest]; /* dither >> 16 */
  /* +-1 and noise in the order of the vector code, if there is any: lattice_encode.h */
  alignas(64) int16_t paired_sign[kLongest];
  alignas(64) uint16_t paired_noise[kLongest];
};

/* The sign bits of coordinates 0..n of a block. */
static inline void draw_signs(uint32_t key, size_t n, uint32_t *out) {
  for (size_t i = 0; i < n; ++i) out[i] = hash32(key, static_cast<uint32_t>(i)) & 0x80000000u;
}

static inline void draw_patterns(Patterns &p, const sw_keys &keys, size_t n) {
  draw_signs(keys.sign, n, p.sign);
  for (size_t i = 0; i < n; ++i) p.dither[i] = hash32(keys.dither, static_cast<uint32_t>(i));
  for (size_t i = 0; i < n; ++i) p.half_dither[i] = static_cast<int32_t>(p.dither[i] >> 16);
  for (size_t i = 0; i < n; ++i) p.noise[i] = static_cast<uint16_t>(hash32(keys.noise, static_cast<uint32_t>(i)));
}

/* What makes the shared patterns differ between blocks: noise is turned by an angle, dither flipped. */
static inline uint32_t turn(const sw_keys &keys, uint64_t block) {
  return hash32(keys.noise ^ 0xA5A5A5A5u, static_cast<uint32_t>(block)) + keys.shift;
}
static inline uint32_t flips(const sw_keys &keys, uint64_t block) {
  return hash32(keys.dither ^ 0xA5A5A5A5u, static_cast<uint32_t>(block));
}

struct EncodeJob {
  const sw_scheme *scheme;
  const sw_keys *keys;
  const Patterns *patterns;
  const float *x;  /* one block */
  float *residual; /* one block or null */
  float scale;
  uint64_t block;
  int log_size, cls, width;
  uint8_t *out;     /* width * size bits, byte aligned; unused when size < 8 */
  uint8_t *indices; /* scratch: size bytes; holds the indices afterwards */
  int32_t *units;   /* scratch: size words */
};

struct DecodeJob {
  const sw_scheme *scheme;
  const Patterns *patterns;
  uint32_t sign_key;
  const uint8_t *lanes;
  int32_t lane_bytes, count;
  float scale;
  int log_size, cls;
  float *out;
  int32_t *units; /* scratch: size words */
};

struct AddJob {
  const sw_scheme *scheme;
  int log_size, cls;
  uint8_t *lanes;
  uint64_t payloads;
  const uint8_t *const *data; /* each at this block */
  const uint8_t *widths;      /* of this block, by payload */
  bool fresh;                 /* lanes hold nothing yet */
};

enum class Done { yes, beyond_terms };

/* One instruction set's operations on a block. */
struct Ops {
  const char *name;
  void (*draw_signs)(uint32_t key, size_t n, uint32_t *out);
  void (*draw_patterns)(Patterns &, const sw_keys &, size_t n);
  double (*sum_squares)(const float *x, size_t n);
  void (*to_float)(int kind, const void *src, size_t n, float *dst);
  Done (*encode)(const EncodeJob &);
  void (*decode)(const DecodeJob &);
  void (*add)(const AddJob &);
  void (*pack)(const uint8_t *lanes, int lane_bytes, int width, size_t n, uint8_t *out);
  void (*unpack)(const uint8_t *data, int width, size_t n, int lane_bytes, uint8_t *lanes);
};

extern const Ops kPortable;
const Ops *avx2_ops(); /* null when not built for this architecture */
const Ops *avx512_ops();
const Ops &ops(); /* the best that this CPU runs */

/* Another family's operations for the same instruction set, or for the next lower one that it has. */
template <class FamilyOps>
static inline const FamilyOps &like_ops(const FamilyOps &portable, const FamilyOps *avx2, const FamilyOps *avx512) {
  if (avx512 && &ops() == avx512_ops()) return *avx512;
  return avx2 && &ops() != &kPortable ? *avx2 : portable;
}

static inline double root(const sw_scheme &scheme, int log_size) {
  return scheme.rotate ? std::sqrt(static_cast<double>(uint64_t{1} << log_size)) : 1.0;
}

static inline float encode_gain(const sw_scheme &scheme, int cls, int log_size, float scale) {
  return static_cast<float>(scheme.lattices[cls].encode_gain / root(scheme, log_size) / static_cast<double>(scale));
}

static inline float decode_gain(const sw_scheme &scheme, int cls, int log_size, float scale, int32_t count) {
  return static_cast<float>(static_cast<double>(scale) * scheme.lattices[cls].decode_gain /
                            (static_cast<double>(count) * root(scheme, log_size)));
}

static inline int32_t half_range(const sw_lattice &lattice) {
  return static_cast<int32_t>((int64_t{lattice.granularity} << lattice.fraction_bits) >> 1);
}

/* Clamping a block times c leaves `shrink` of it, as decode expects: see correction.py. This is (c - 1) * 2**15 for
 * rotated coordinates that are Gaussian, from the sum of squares of a block's units. */
static inline int32_t gaussian_correction(const sw_lattice &lattice, int64_t squares) {
  const int64_t step = static_cast<int64_t>(static_cast<double>(squares) * lattice.energy_gain);
  return lattice.corrections[std::min<int64_t>(step, SW_ENERGY_STEPS - 1)];
}

/* What every rotated coordinate gets, so that it counts from the bottom of the range: times c, half of it. */
static inline int32_t offset(const sw_lattice &lattice, int32_t correction) {
  const uint32_t c = 32768 + correction, half = half_range(lattice);
  if (half < 1u << 15) return (half * 65536 + c) / (2 * c); /* division of 64 bits takes longer */
  return static_cast<int32_t>((uint64_t{half} * 65536 + c) / (2 * c));
}

static inline bool is_corrected(const sw_lattice &lattice) { return lattice.corrections[0] != 0; }

/* Whether few coordinates hold most of the energy: their rotation is not Gaussian. */
static inline bool is_spiky(int64_t largest_square, int64_t squares) { return 8 * largest_square > squares; }

static inline int lane_bytes(const sw_lattice &lattice) {
  return lattice.granularity == 0 ? 0 : lattice.lane_bits <= 8 ? 1 : lattice.lane_bits <= 16 ? 2 : 4;
}

} // namespace sw
