/* The C ABI of Sumwire's kernels. src/sumwire/kernels/lattice/reference.py defines them; these functions
 * return the same bytes. Buffers must not overlap unless stated. Nothing is kept but scratch memory of each thread. */
#pragma once
#include <cstddef>
#include <cstdint>

#define SW_API extern "C" __attribute__((visibility("default")))

constexpr int SW_ABI = 10;
constexpr int SW_MAX_BITS = 8;
constexpr int SW_MAX_LOG_BLOCK = 20;
constexpr int SW_ENERGY_STEPS = 1024;

enum sw_kind : int32_t { SW_F32 = 0, SW_F16 = 1, SW_BF16 = 2, SW_F64 = 3 };

struct sw_lattice {
  int32_t granularity; /* 0: this width class is not in use */
  int32_t fraction_bits;
  int32_t rotation_bits;
  int32_t lane_bits;
  int32_t lanes_per_word;
  uint32_t word_bias;
  double encode_gain;
  double decode_gain;
  double shrink;                        /* what clamping leaves of a coordinate on average; in decode_gain already */
  double energy_gain;                   /* steps of `corrections` per squared unit of a block */
  int16_t corrections[SW_ENERGY_STEPS]; /* (c - 1) * 2**15; all 0 if nothing is corrected */
};

struct sw_table {
  const uint16_t *values; /* 2**bits lattice values */
  const uint8_t *lower;   /* by lattice cell 0..granularity: the index at or below it */
  const uint16_t *gap;    /* 2**bits distances to the next value; 1 at the top */
  const uint8_t *bytes64; /* lower, values, gap, values + gap as 64 bytes each; null if they do not fit */
};

struct sw_scheme {
  int32_t log_block;
  int32_t rotate;
  sw_lattice lattices[SW_MAX_BITS + 1];
  sw_table tables[SW_MAX_BITS + 1][SW_MAX_BITS + 1]; /* [width class][index width] */
  int64_t square_limit[SW_MAX_LOG_BLOCK + 1][SW_MAX_BITS + 1];
};

struct sw_keys {
  uint32_t sign, noise, dither, shift;
};

/* How centered lanes become indices of one width: src/sumwire/kernels/lattice/narrow_tables.py. */
struct sw_quantizer {
  const uint8_t *magnitudes; /* by cell, 64 of them; widths up to 5 */
  const uint16_t *levels;    /* 2**(width - 1) odd numbers */
  int32_t density;           /* cells per standard deviation; 0 for widths from 6 on, which have lines */
  int32_t slopes[5], offsets[5];
  double unit;
};

/* Segments of a narrow sum, those of blocks lo..hi: edges has one more than budgets, as bytes_at has. */
struct sw_segments {
  uint64_t count;
  int64_t energy;
  const int64_t *edges, *budgets, *bytes_at;
};

SW_API int32_t sw_abi(void);
/* Which instruction set the kernels use on this CPU: "portable", "avx2", ... */
SW_API const char *sw_level(void);
/* Cap that set: 0 portable, 1 avx2, 2 avx512; returns the level now in use. For tests. */
SW_API int32_t sw_set_level(int32_t level);

/* out[i] = scale of block i, lo <= i < hi; out starts at block lo. */
SW_API void sw_measure(const sw_scheme *scheme, const void *x, int32_t kind, uint64_t size, float *out, uint64_t lo,
                       uint64_t hi);
/* Round scales up to eighths of an octave, at most 31.75 octaves apart, in place. */
SW_API void sw_round_scales(float *scales, uint64_t count);
/* Width of every block of the tensor; ladder is a bit set of the widths allowed. */
SW_API void sw_allocate(const float *scales, uint64_t size, int32_t log_block, int64_t budget, int64_t energy,
                        uint32_t ladder, int32_t floor, uint8_t *out);
/* scales, classes, widths: whole tensor. out: zero or more bytes of blocks lo..hi. residual: whole
 * tensor or null; it may be x when kind is SW_F32. Returns -1, or the first block beyond its terms. */
SW_API int64_t sw_encode(const sw_scheme *scheme, const void *x, int32_t kind, uint64_t size, const float *scales,
                         const uint8_t *classes, const uint8_t *widths, const sw_keys *keys, uint8_t *out,
                         float *residual, uint64_t lo, uint64_t hi);
/* lanes (or 0, if fresh) += table[data[p]] for p < payloads; classes, widths, data and lanes hold blocks lo..hi. */
SW_API void sw_add(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, uint8_t *lanes, uint64_t payloads,
                   const uint8_t *const *data, const uint8_t *const *widths, int32_t fresh, uint64_t lo, uint64_t hi);
/* lanes += other, both the sum lanes of blocks lo..hi. */
SW_API void sw_add_lanes(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, uint8_t *lanes,
                         const uint8_t *other, uint64_t lo, uint64_t hi);
SW_API void sw_pack_lanes(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint8_t *lanes,
                          uint8_t *out, uint64_t lo, uint64_t hi);
SW_API void sw_unpack_lanes(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint8_t *data,
                            uint8_t *lanes, uint64_t lo, uint64_t hi);
/* A payload's lanes as 32-bit words that a plain SUM adds, and back from the sum of `count` of them. */
SW_API void sw_pack_words(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint8_t *lanes,
                          uint32_t *out, uint64_t lo, uint64_t hi);
SW_API void sw_unpack_words(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint32_t *data,
                            uint32_t count, uint8_t *lanes, uint64_t lo, uint64_t hi);
/* counts, scales, classes, out: whole tensor; lanes: blocks lo..hi. */
SW_API void sw_decode(const sw_scheme *scheme, const uint8_t *lanes, const int32_t *counts, const float *scales,
                      const uint8_t *classes, uint32_t sign_key, float *out, uint64_t size, uint64_t lo, uint64_t hi);
/* The same from lanes as they lie on the wire: data holds blocks lo..hi, and lo begins a byte. */
SW_API void sw_decode_packed(const sw_scheme *scheme, const uint8_t *data, const int32_t *counts, const float *scales,
                             const uint8_t *classes, uint32_t sign_key, float *out, uint64_t size, uint64_t lo,
                             uint64_t hi);
/* Orthonormal randomized Hadamard of every block, in float32. out may be x. */
SW_API void sw_rotate(const float *x, uint64_t size, int32_t log_block, uint32_t key, int32_t inverse, float *out);
/* Widths of narrow sums, of a whole tensor: as sw_allocate, with the width of each block's lanes as one more. */
SW_API void sw_allocate_sums(const float *scales, uint64_t size, int32_t log_block, const uint8_t *lanes,
                             int64_t budget, int64_t energy, uint8_t *out);
/* The same within each segment, by the energy of the sum. scales, classes: whole tensor; coarse, out: blocks lo..hi. */
SW_API void sw_narrow_widths(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const float *scales,
                             const uint8_t *coarse, const sw_segments *segments, uint8_t *out, uint64_t lo,
                             uint64_t hi);
/* counts, lanes, coarse, fine, data: blocks lo..hi. quantizers: by width, 0 unused. */
SW_API void sw_narrow(const sw_scheme *scheme, const sw_quantizer *quantizers, uint64_t size, const uint8_t *classes,
                      const float *scales, const int32_t *counts, const uint8_t *lanes, const sw_segments *segments,
                      uint8_t *coarse, uint8_t *fine, uint8_t *data, uint64_t lo, uint64_t hi);
/* coarse, fine, widths, data: blocks lo..hi; counts, scales, classes, out: whole tensor. */
SW_API void sw_decode_narrow(const sw_scheme *scheme, const sw_quantizer *quantizers, const uint8_t *coarse,
                             const uint8_t *fine, const uint8_t *widths, const uint8_t *data,
                             const sw_segments *segments, const int32_t *counts, const float *scales,
                             const uint8_t *classes, uint32_t sign_key, float *out, uint64_t size, uint64_t lo,
                             uint64_t hi);
SW_API uint32_t sw_crc32c(const uint8_t *data, uint64_t n, uint32_t start);

/* Blocks of `nbytes` bytes that begin at `starts`, one after another. */
SW_API void sw_gather_blocks(const uint8_t *data, const int64_t *starts, uint64_t nbytes, uint64_t count, uint8_t *out);

/* Blocks of `block` lanes of `lane` bytes, in the order that indices of `width` bits have in bytes, into that of
 * coordinates: block k goes to out + starts[k]. */
SW_API void sw_spread_lanes(const uint8_t *data, uint32_t block, uint32_t width, uint32_t bits, uint32_t per_word,
                            uint32_t lane, const int64_t *starts, uint64_t count, uint8_t *out);
