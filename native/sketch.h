/* What the sketch's units share: where coordinates go. */
#pragma once
#include "walk.h"

extern "C" {
struct sw_geometry {
  uint64_t size;
  int32_t log_block;
  int32_t probes; /* 0: the index is a bitmap */
  uint64_t table; /* cells of each sub-table */
  uint64_t span;
  uint64_t words;
  uint64_t key;
};
}

namespace sw {
namespace {

constexpr int TABLES = 3;

inline uint64_t hash64(uint64_t key, uint64_t counter) {
  uint64_t h = (counter + 1) * 0x9E3779B97F4A7C15ull + key;
  h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ h >> 27) * 0x94D049BB133111EBull;
  return h ^ h >> 31;
}

/* A number below n from a hash's upper half. */
inline uint64_t below(uint64_t h, uint64_t n) { return (h >> 32) * n >> 32; }

inline uint32_t lane_mask(const sw_geometry &g) { return (1u << g.log_block) - 1; }

/* How many places a sub-table has for a block to begin at. */
inline uint64_t starts(const sw_geometry &g) { return g.table - lane_mask(g); }

/* Where a block begins in its first sub-table; it begins less than g.span behind that in the others. */
inline uint32_t base_of(const sw_geometry &g, uint64_t block) {
  return static_cast<uint32_t>(below(hash64(g.key, 2 * block), starts(g)));
}

/* The cells of a block's first lane; those of the other lanes follow. */
inline void begin_of(const sw_geometry &g, uint64_t block, uint32_t base, uint32_t *begin) {
  const uint64_t h = hash64(g.key, 2 * block + 1);
  const uint64_t ends[TABLES] = {base, base + below(h, g.span), base + below(h << 32, g.span)};
  for (int t = 0; t < TABLES; ++t)
    begin[t] = static_cast<uint32_t>(t * g.table + ends[t] - (ends[t] >= starts(g) ? starts(g) : 0));
}

} // namespace
} // namespace sw
