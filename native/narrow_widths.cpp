/* The exported functions that choose widths of narrow sums. */
#include "narrow_widths.h"

using namespace sw;

void sw_allocate_sums(const float *scales, uint64_t size, int32_t log_block, const uint8_t *lanes, int64_t budget,
                      int64_t energy, uint8_t *out) {
  const Blocks blocks(size, log_block);
  Choice choice(blocks);
  choice.start(0, blocks.count());
  for (uint64_t i = 0; i < blocks.count(); ++i) choice.set(i, scales[i], energy, lanes[i]);
  choice.solve(budget, out);
}

void sw_narrow_widths(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const float *scales,
                      const uint8_t *coarse, const sw_segments *segments, uint8_t *out, uint64_t lo, uint64_t) {
  const PlainFloats plain;
  const Blocks blocks(size, scheme->log_block);
  Choice choice(blocks);
  for (uint64_t s = 0; s < segments->count; ++s) {
    const uint64_t a = segments->edges[s], b = segments->edges[s + 1];
    choose_widths(*scheme, classes, scales, coarse + (a - lo), segments->energy, segments->budgets[s], a, b, choice,
                  out + (a - lo));
  }
}
