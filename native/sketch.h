/* What the sketch's units share: where coordinates go. */
#pragma once
#include "walk.h"

extern "C" {
struct sw_geometry {
  uint64_t size;
  int32_t log_block;
  int32_t probes; /* 0: the index is a bitmap */
  uint64_t rows;  /* of each sub-table */
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

/* Where a block's lanes go: the row in each sub-table, and how far lanes turn there. */
struct Place {
  uint32_t row[TABLES];
  uint32_t turn[TABLES];

  Place(const sw_geometry &g, uint32_t block) {
    for (int t = 0; t < TABLES; ++t) {
      const uint64_t h = hash64(g.key, TABLES * uint64_t{block} + t);
      row[t] = static_cast<uint32_t>((t * g.rows + below(h, g.rows)) << g.log_block);
      turn[t] = static_cast<uint32_t>(h);
    }
  }
  void cells(uint32_t at, uint32_t mask, uint32_t *where) const {
    for (int t = 0; t < TABLES; ++t) where[t] = row[t] + ((at + turn[t]) & mask);
  }
};

/* The three cells of a coordinate. */
inline void place(const sw_geometry &g, uint32_t at, uint32_t *where) {
  Place(g, at >> g.log_block).cells(at, (1u << g.log_block) - 1, where);
}

/* Calls visit(i, its three cells) for n ascending coordinates, hashing once for each block. */
template <typename F>
void each_item(const sw_geometry &g, const uint32_t *at, uint64_t n, F &&visit) {
  const uint32_t mask = (1u << g.log_block) - 1;
  for (uint64_t i = 0; i < n;) {
    const uint32_t block = at[i] >> g.log_block;
    const Place here(g, block);
    for (; i < n && at[i] >> g.log_block == block; ++i) {
      uint32_t where[TABLES];
      here.cells(at[i], mask, where);
      visit(i, where);
    }
  }
}

} // namespace
} // namespace sw
