/* The exported functions of scalar.h, block by block, and rotation in float32. */
#include "scalar_generic.h"
#include "walk.h"

namespace sw {

const ScalarOps &scalar_ops() { return like_ops(kScalar, scalar_avx2_ops(), scalar_avx512_ops()); }

namespace {

/* Calls work(block number, first coordinate, how many) for each block. */
template <class Work>
void each_block(uint64_t size, int log_block, Work work) {
  const PlainFloats plain;
  const Blocks blocks(size, log_block);
  for (uint64_t b = 0; b < blocks.count(); ++b) work(b, blocks[b].start, blocks[b].size());
}

} // namespace
} // namespace sw

using namespace sw;

void sw_rotate(const float *x, uint64_t size, int32_t log_block, uint32_t key, int32_t inverse, float *out) {
  const ScalarOps &best = scalar_ops();
  alignas(64) uint32_t signs[Patterns::kLongest]; /* which all blocks share */
  const uint64_t longest = std::min(size, uint64_t{1} << log_block);
  const bool drawn = longest <= Patterns::kLongest;
  if (drawn) ops().draw_signs(key, longest, signs);
  each_block(size, log_block, [&](uint64_t, uint64_t at, uint64_t n) {
    best.rotate(x + at, n, key, drawn ? signs : nullptr, inverse != 0, out + at);
  });
}

void sw_scalar_summarize(const float *x, uint64_t size, int32_t log_block, float *low, float *high, double *squares) {
  const ScalarOps &best = scalar_ops();
  each_block(size, log_block,
             [&](uint64_t b, uint64_t at, uint64_t n) { best.summarize(x + at, n, low + b, high + b, squares + b); });
}

void sw_scalar_quantize(const float *x, uint64_t size, int32_t log_block, const double *low, const double *gain,
                        uint32_t levels, uint32_t key, uint32_t first, const uint32_t *noise, uint16_t *index) {
  const ScalarOps &best = scalar_ops();
  each_block(size, log_block, [&](uint64_t b, uint64_t at, uint64_t n) {
    best.quantize(x + at, n, low[b], gain[b], levels, key, first + static_cast<uint32_t>(at),
                  noise ? noise + at : nullptr, index + at);
  });
}

void sw_scalar_dequantize(const uint16_t *index, uint64_t size, int32_t log_block, const double *low,
                          const double *step, float *out) {
  const ScalarOps &best = scalar_ops();
  each_block(size, log_block,
             [&](uint64_t b, uint64_t at, uint64_t n) { best.dequantize(index + at, n, low[b], step[b], out + at); });
}

void sw_scalar_nearest(const float *x, uint64_t size, int32_t log_block, const float *gain, const float *edges,
                       const float *centers, int32_t bits, uint16_t *index, double *dots) {
  const ScalarOps &best = scalar_ops();
  each_block(size, log_block, [&](uint64_t b, uint64_t at, uint64_t n) {
    dots[b] = best.nearest(x + at, n, gain[b], edges, centers, bits, index + at);
  });
}

void sw_scalar_look_up(const uint16_t *index, uint64_t size, int32_t log_block, const float *scale,
                       const float *centers, float *out) {
  const ScalarOps &best = scalar_ops();
  each_block(size, log_block,
             [&](uint64_t b, uint64_t at, uint64_t n) { best.look_up(index + at, n, scale[b], centers, out + at); });
}

/* Four values of 16 bits each as one field of 4 * width bits, and back. */

static inline uint64_t join4(const uint16_t *index, int width) {
  uint64_t v;
  std::memcpy(&v, index, 8);
  v = (v & 0x0000FFFF0000FFFFull) | (v & 0xFFFF0000FFFF0000ull) >> (16 - width);
  return (v & 0xFFFFFFFFull) | v >> 32 << (2 * width);
}
static inline void part4(uint64_t v, int width, uint16_t *index) {
  const uint64_t one = (uint64_t{1} << width) - 1, pair = (uint64_t{1} << (2 * width)) - 1;
  v = (v & pair) | (v >> (2 * width) & pair) << 32;
  v = (v & one * 0x100000001ull) | (v & (one << width) * 0x100000001ull) << (16 - width);
  std::memcpy(index, &v, 8);
}

/* Eight values take `width` whole bytes: up to 8 bits they are packed eight at a time, the others and the last
 * few one by one. */

void sw_scalar_pack(const uint16_t *index, uint64_t size, int32_t width, uint8_t *out) {
  uint64_t i = 0;
  uint8_t *const end = out + (size * static_cast<uint64_t>(width) + 7) / 8;
  for (; width <= 8 && i + 8 <= size; i += 8, out += width) {
    const uint64_t eight = join4(index + i, width) | join4(index + i + 4, width) << (4 * width);
    std::memcpy(out, &eight, end - out >= 8 ? 8 : static_cast<size_t>(width));
  }
  uint64_t buffer = 0;
  int fill = 0;
  for (; i < size; ++i) {
    buffer |= static_cast<uint64_t>(index[i]) << fill;
    for (fill += width; fill >= 8; fill -= 8, buffer >>= 8) *out++ = static_cast<uint8_t>(buffer);
  }
  if (fill) *out = static_cast<uint8_t>(buffer);
}

void sw_scalar_unpack(const uint8_t *data, uint64_t size, int32_t width, uint16_t *index) {
  uint64_t i = 0;
  const uint8_t *const end = data + (size * static_cast<uint64_t>(width) + 7) / 8;
  for (; width <= 8 && i + 8 <= size; i += 8, data += width) {
    uint64_t eight = 0;
    std::memcpy(&eight, data, end - data >= 8 ? 8 : static_cast<size_t>(width));
    part4(eight, width, index + i);
    part4(eight >> (4 * width), width, index + i + 4);
  }
  uint64_t buffer = 0;
  int fill = 0;
  for (; i < size; ++i) {
    for (; fill < width; fill += 8) buffer |= static_cast<uint64_t>(*data++) << fill;
    index[i] = static_cast<uint16_t>(buffer & ((uint64_t{1} << width) - 1));
    buffer >>= width;
    fill -= width;
  }
}
