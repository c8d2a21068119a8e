/* The exported functions of levels.h, block by block, and rotation in float32. */
#include "levels_generic.h"
#include "walk.h"

namespace sw {

const LevelsOps &levels_ops() {
  const Ops *best = &ops();
  if (best == avx512_ops() && levels_avx512_ops()) return *levels_avx512_ops();
  if (best != &kPortable && levels_avx2_ops()) return *levels_avx2_ops();
  return kLevels;
}

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
  const LevelsOps &best = levels_ops();
  each_block(size, log_block,
             [&](uint64_t, uint64_t at, uint64_t n) { best.rotate(x + at, n, key, inverse != 0, out + at); });
}

void sw_levels_summarize(const float *x, uint64_t size, int32_t log_block, float *low, float *high, double *squares) {
  const LevelsOps &best = levels_ops();
  each_block(size, log_block,
             [&](uint64_t b, uint64_t at, uint64_t n) { best.summarize(x + at, n, low + b, high + b, squares + b); });
}

void sw_levels_quantize(const float *x, uint64_t size, int32_t log_block, const double *low, const double *gain,
                        uint32_t levels, uint32_t key, uint32_t first, const uint32_t *noise, uint16_t *index) {
  const LevelsOps &best = levels_ops();
  each_block(size, log_block, [&](uint64_t b, uint64_t at, uint64_t n) {
    best.quantize(x + at, n, low[b], gain[b], levels, key, first + static_cast<uint32_t>(at),
                  noise ? noise + at : nullptr, index + at);
  });
}

void sw_levels_dequantize(const uint16_t *index, uint64_t size, int32_t log_block, const double *low,
                          const double *step, float *out) {
  const LevelsOps &best = levels_ops();
  each_block(size, log_block,
             [&](uint64_t b, uint64_t at, uint64_t n) { best.dequantize(index + at, n, low[b], step[b], out + at); });
}

void sw_levels_nearest(const float *x, uint64_t size, int32_t log_block, const float *gain, const float *edges,
                       const float *centres, int32_t bits, uint16_t *index, double *dots) {
  const LevelsOps &best = levels_ops();
  each_block(size, log_block, [&](uint64_t b, uint64_t at, uint64_t n) {
    dots[b] = best.nearest(x + at, n, gain[b], edges, centres, bits, index + at);
  });
}

void sw_levels_look_up(const uint16_t *index, uint64_t size, int32_t log_block, const float *scale,
                       const float *centres, float *out) {
  const LevelsOps &best = levels_ops();
  each_block(size, log_block,
             [&](uint64_t b, uint64_t at, uint64_t n) { best.look_up(index + at, n, scale[b], centres, out + at); });
}

/* Eight values take `width` whole bytes, so runs of eight never share one. */

void sw_levels_pack(const uint16_t *index, uint64_t size, int32_t width, uint8_t *out) {
  uint64_t buffer = 0;
  int fill = 0;
  for (uint64_t i = 0; i < size; ++i) {
    buffer |= static_cast<uint64_t>(index[i]) << fill;
    fill += width;
    if (fill >= 32) {
      for (int k = 0; k < 4; ++k) out[k] = static_cast<uint8_t>(buffer >> (8 * k));
      out += 4;
      buffer >>= 32;
      fill -= 32;
    }
  }
  for (; fill > 0; fill -= 8) {
    *out++ = static_cast<uint8_t>(buffer);
    buffer >>= 8;
  }
}

void sw_levels_unpack(const uint8_t *data, uint64_t size, int32_t width, uint16_t *index) {
  const uint8_t *end = data + (size * static_cast<uint64_t>(width) + 7) / 8;
  const uint64_t mask = (uint64_t{1} << width) - 1;
  uint64_t buffer = 0;
  int fill = 0;
  for (uint64_t i = 0; i < size; ++i) {
    if (fill < width) {
      if (end - data >= 4) {
        for (int k = 0; k < 4; ++k) buffer |= static_cast<uint64_t>(*data++) << (fill + 8 * k);
        fill += 32;
      } else {
        while (fill < width && data < end) {
          buffer |= static_cast<uint64_t>(*data++) << fill;
          fill += 8;
        }
      }
    }
    index[i] = static_cast<uint16_t>(buffer & mask);
    buffer >>= width;
    fill -= width;
  }
}
