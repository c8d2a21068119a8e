/* One-shot quantization for mean estimation: the exported functions, and what exists per instruction set.
 *
 * src/sumwire/kernels/scalar/reference.py defines what these return. Arrays begin with a block; blocks are
 * cut as everywhere (walk.h). Per-block arrays hold one element for each of them. */
#pragma once
#include "sumwire.h"

/* Smallest and largest coordinate and sum of squares of every block. */
SW_API void sw_scalar_summarize(const float *x, uint64_t size, int32_t log_block, float *low, float *high,
                                double *squares);
/* index = floor((x - low) * gain + noise), below `levels`. noise holds 32 bits of fraction for every
 * coordinate, or is null: then they are drawn from key, for counters from `first` on. */
SW_API void sw_scalar_quantize(const float *x, uint64_t size, int32_t log_block, const double *low, const double *gain,
                               uint32_t levels, uint32_t key, uint32_t first, const uint32_t *noise, uint16_t *index);
SW_API void sw_scalar_dequantize(const uint16_t *index, uint64_t size, int32_t log_block, const double *low,
                                 const double *step, float *out);
/* index = number of edges below x * gain; dots = sum of x * centers[index] of every block. There are
 * 2**bits centers, rising, and one edge less between them. */
SW_API void sw_scalar_nearest(const float *x, uint64_t size, int32_t log_block, const float *gain, const float *edges,
                              const float *centers, int32_t bits, uint16_t *index, double *dots);
SW_API void sw_scalar_look_up(const uint16_t *index, uint64_t size, int32_t log_block, const float *scale,
                              const float *centers, float *out);
/* Value i at bits i * width .. of the stream, least significant bit first. out: (size * width + 7) / 8 bytes. */
SW_API void sw_scalar_pack(const uint16_t *index, uint64_t size, int32_t width, uint8_t *out);
SW_API void sw_scalar_unpack(const uint8_t *data, uint64_t size, int32_t width, uint16_t *index);

namespace sw {

/* One instruction set's operations on a block of n coordinates. */
struct ScalarOps {
  void (*summarize)(const float *x, size_t n, float *low, float *high, double *squares);
  /* signs: those of the key if they were drawn before, or null. */
  void (*rotate)(const float *x, size_t n, uint32_t key, const uint32_t *signs, bool inverse, float *out);
  void (*quantize)(const float *x, size_t n, double low, double gain, uint32_t levels, uint32_t key, uint32_t first,
                   const uint32_t *noise, uint16_t *index);
  void (*dequantize)(const uint16_t *index, size_t n, double low, double step, float *out);
  double (*nearest)(const float *x, size_t n, float gain, const float *edges, const float *centers, int bits,
                    uint16_t *index);
  void (*look_up)(const uint16_t *index, size_t n, float scale, const float *centers, float *out);
};

const ScalarOps *scalar_avx2_ops(); /* null when not built for this architecture */
const ScalarOps *scalar_avx512_ops();
const ScalarOps &scalar_ops(); /* the best that this CPU runs */

} // namespace sw
