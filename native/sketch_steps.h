/* The steps of inserting and peeling that exist per instruction set. */
#pragma once
#include "sketch.h"

namespace sw {

/* What is known of a cell: [0] is its value, [1] the sum of its items.
 *
 * An item is one number: its run and lane in the upper 32 bits, then its place among the run's items, then a 1. In a
 * sum of items the lowest 32 - log_block bits count them, and where they count 1 the sum is the item. No field can
 * overflow, since there are 2**32 coordinates at most. */
using Cell = uint64_t __attribute__((vector_size(16)));

/* Where the items of one block go, and where they are: together, since coordinates ascend. */
struct Run {
  uint32_t begin[3]; /* cells of lane 0 */
  uint32_t first;
};

struct Batch {
  static constexpr size_t SIZE = 64, ROOM = SIZE + 8; /* vectors may write behind the end */
  Cell taken[ROOM];                                   /* value and item */
  uint64_t items[ROOM], seen[3][ROOM];
  uint32_t from[ROOM], index[ROOM], cells[3][ROOM];
};

struct SketchView {
  const Cell *cells;
  const Run *runs;
  uint64_t table;
  int log_block;

  uint64_t counts() const { return (uint64_t{1} << (32 - log_block)) - 1; }
};

struct SketchSteps {
  /* Which of n ascending coordinates begin a block; returns how many. Up to 16 more places of `first` are written. */
  size_t (*heads)(const uint32_t *at, size_t n, int log_block, uint32_t *first);
  /* Of n queued cells those that are still pure, into from and items; returns how many. */
  size_t (*pick)(const SketchView &view, const uint32_t *queue, size_t n, Batch &batch);
  /* Their values, all their cells, and which items they are. */
  void (*locate)(const SketchView &view, size_t found, Batch &batch);
  /* Queues cells before `limit` of their sub-table that were seen to be pure; returns how many. Up to 8 more places
   * of the queue are written. */
  size_t (*push)(const SketchView &view, size_t found, uint64_t limit, const Batch &batch, uint32_t *queue);
};

const SketchSteps *sketch_avx512_steps(); /* null when not built for this architecture */

} // namespace sw
