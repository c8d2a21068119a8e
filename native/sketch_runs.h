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

  Runs(const sw_geometry &g, uint64_t n)
      : most_(std::min(n, (g.size >> g.log_block) + 1)), stretches_((starts(g) + STRETCH - 1) / STRETCH) {}
  size_t bytes() const {
    return Scratch::room<Run>(most_) + 2 * Scratch::room<uint32_t>(most_) + Scratch::room<uint32_t>(most_ + 17) +
           Scratch::room<uint64_t>(stretches_ + 1);
  }
  /* Finds the runs and sorts them, in memory of the scratch. */
  void sort(const sw_geometry &geometry, const uint32_t *at, uint64_t n, const SketchSteps &steps, Scratch &scratch) {
    const sw_geometry g = geometry;
    runs_ = scratch.take<Run>(most_);
    counts_ = scratch.take<uint32_t>(most_);
    ends_ = scratch.take<uint64_t>(stretches_ + 1);
    uint32_t *const bases = scratch.take<uint32_t>(most_), *const first = scratch.take<uint32_t>(most_ + 17);
    size_ = steps.heads(at, n, g.log_block, first);
    first[size_] = static_cast<uint32_t>(n);
    std::fill(ends_, ends_ + stretches_ + 1, 0);
    for (uint64_t i = 0; i < size_; ++i) {
      bases[i] = base_of(g, at[first[i]] >> g.log_block);
      ++ends_[bases[i] / STRETCH + 1];
    }
    for (uint64_t s = 0; s < stretches_; ++s) ends_[s + 1] += ends_[s];
    for (uint64_t i = 0; i < size_; ++i) {
      const uint64_t place = ends_[bases[i] / STRETCH]++;
      begin_of(g, at[first[i]] >> g.log_block, bases[i], runs_[place].begin);
      runs_[place].first = first[i];
      counts_[place] = first[i + 1] - first[i];
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
  uint64_t most_, stretches_, size_ = 0;
  Run *runs_;
  uint32_t *counts_;
  uint64_t *ends_; /* of stretches */
};

} // namespace
} // namespace sw
