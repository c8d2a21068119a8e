/* The sketch's blocks in an order that is kind to caches: what is near in it has cells that are near. */
#pragma once
#include <algorithm>

#include "scratch.h"
#include "sketch_steps.h"

namespace sw {
namespace {

/* Blocks that have items, in stretches by where they begin in their first sub-table. */
class Runs {
public:
  static constexpr uint64_t STRETCH = 2048; /* cells */
  struct Head {
    uint32_t first, base;
  };

  Runs(const sw_geometry &g, const uint32_t *at, uint64_t n)
      : size_(blocks_in(at, n, g.log_block)), stretches_((starts(g) + STRETCH - 1) / STRETCH) {}
  size_t bytes() const {
    return Scratch::room<Run>(size_) + Scratch::room<uint32_t>(size_) + Scratch::room<uint64_t>(stretches_ + 1) +
           Scratch::room<Head>(size_ + 1);
  }
  /* Finds the runs and sorts them, in memory of the scratch. */
  void sort(const sw_geometry &geometry, const uint32_t *at, uint64_t n, Scratch &scratch) {
    const sw_geometry g = geometry;
    runs_ = scratch.take<Run>(size_);
    counts_ = scratch.take<uint32_t>(size_);
    ends_ = scratch.take<uint64_t>(stretches_ + 1);
    Head *const heads = scratch.take<Head>(size_ + 1);
    heads[0].first = 0;
    uint64_t head = n > 0;
    for (uint64_t i = 1; i < n; ++i) { /* without a branch: it could not be predicted */
      heads[head].first = static_cast<uint32_t>(i);
      head += (at[i] ^ at[i - 1]) >> g.log_block != 0;
    }
    heads[size_].first = static_cast<uint32_t>(n);
    std::fill(ends_, ends_ + stretches_ + 1, 0);
    for (uint64_t i = 0; i < size_; ++i) {
      heads[i].base = base_of(g, at[heads[i].first] >> g.log_block);
      ++ends_[heads[i].base / STRETCH + 1];
    }
    for (uint64_t s = 0; s < stretches_; ++s) ends_[s + 1] += ends_[s];
    for (uint64_t i = 0; i < size_; ++i) {
      const uint32_t first = heads[i].first, base = heads[i].base;
      const uint64_t place = ends_[base / STRETCH]++;
      begin_of(g, at[first] >> g.log_block, base, runs_[place].begin);
      runs_[place].first = first;
      counts_[place] = heads[i + 1].first - first;
    }
  }

  uint64_t size() const { return size_; }
  uint64_t stretches() const { return stretches_; }
  uint64_t begin_of_stretch(uint64_t s) const { return s ? ends_[s - 1] : 0; }
  uint64_t end_of_stretch(uint64_t s) const { return ends_[s]; }
  const Run *get() const { return runs_; }
  const Run &operator[](uint64_t i) const { return runs_[i]; }
  /* A run's items lie anywhere: they are asked for some runs ahead. */
  const Run &ahead(uint64_t i) const { return runs_[i + 12 < size_ ? i + 12 : i]; }
  uint32_t count(uint64_t i) const { return counts_[i]; }

private:
  static uint64_t blocks_in(const uint32_t *at, uint64_t n, int log_block) {
    uint64_t count = n > 0;
    for (uint64_t i = 1; i < n; ++i) count += (at[i] ^ at[i - 1]) >> log_block != 0;
    return count;
  }

  uint64_t size_, stretches_;
  Run *runs_;
  uint32_t *counts_;
  uint64_t *ends_; /* of stretches */
};

} // namespace
} // namespace sw
