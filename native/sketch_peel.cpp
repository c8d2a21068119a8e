/* Into the sketch's cells, and out again.
 * src/sumwire/kernels/sketch/reference.py defines both functions. */
#include <algorithm>
#include <cstring>

#include "sketch_runs.h"

namespace sw {
namespace {

size_t heads(const uint32_t *at, size_t n, int log_block, uint32_t *first) {
  size_t found = n > 0;
  first[0] = 0;
  for (size_t i = 1; i < n; ++i) { /* without a branch: it could not be predicted */
    first[found] = static_cast<uint32_t>(i);
    found += (at[i] ^ at[i - 1]) >> log_block != 0;
  }
  return found;
}

size_t pick(const SketchView &view, const uint32_t *queue, size_t n, Batch &batch) {
  const uint64_t counts = view.counts();
  size_t found = 0;
  for (size_t k = 0; k < n; ++k) {
    const uint64_t items = view.cells[queue[k]][1];
    batch.from[found] = queue[k];
    batch.items[found] = items;
    found += (items & counts) == 1;
  }
  return found;
}

void locate(const SketchView &view, size_t found, Batch &batch) {
  const int log_block = view.log_block;
  for (size_t k = 0; k < found; ++k) {
    const uint64_t item = batch.items[k], from = batch.from[k];
    const uint32_t upper = static_cast<uint32_t>(item >> 32), lane = upper & ((1u << log_block) - 1);
    const Run run = view.runs[upper >> log_block];
    batch.taken[k] = Cell{view.cells[from][0], item};
    for (int t = 0; t < TABLES; ++t) batch.cells[t][k] = run.begin[t] + lane;
    batch.index[k] = run.first + static_cast<uint32_t>((item & 0xFFFFFFFF) >> (32 - log_block));
  }
}

size_t push(const SketchView &view, size_t found, uint64_t limit, const Batch &batch, uint32_t *queue) {
  const uint64_t counts = view.counts();
  size_t count = 0;
  for (int t = 0; t < TABLES; ++t)
    for (size_t k = 0; k < found; ++k) {
      const uint32_t cell = batch.cells[t][k];
      queue[count] = cell;
      count += ((batch.seen[t][k] & counts) == 1) & (cell < t * view.table + limit);
    }
  return count;
}

const SketchSteps kPlain = {heads, pick, locate, push};

const SketchSteps &steps() { return like_ops<SketchSteps>(kPlain, nullptr, sketch_avx512_steps()); }

constexpr uint64_t AHEAD = 512; /* cells: hardware does not fetch across pages */

/* Peeling, one stretch of the sub-tables after the other, so that all that is touched stays in the caches. */
class Peeler {
public:
  Peeler(const sw_geometry &g, const uint32_t *at, uint64_t n, const uint64_t *sums, int64_t *values, uint8_t *left)
      : g_(g), steps_(steps()), at_(at), sums_(sums), values_(values), left_(left), stay_(n), runs_(g, n),
        scratch_(runs_.bytes() + Scratch::room<Cell>(TABLES * g.table) +
                 Scratch::room<uint32_t>(TABLES * g.table + 8)) {
    if (!ready()) return;
    runs_.sort(g, at, n, steps_, scratch_);
    cells_ = scratch_.take<Cell>(TABLES * g.table);
    queue_ = scratch_.take<uint32_t>(TABLES * g.table + 8);
  }

  bool ready() const { return static_cast<bool>(scratch_); }

  uint64_t peel(uint64_t *rest) {
    const uint64_t n = stay_, stretches = runs_.stretches();
    /* Runs that begin near the tables' end have cells at their start: these come first. */
    const uint64_t turning = (starts(g_) - g_.span) / Runs::STRETCH, last = turning * Runs::STRETCH;
    for (int t = 0; t < TABLES; ++t) fetch(t, last, g_.table);
    fetch_ahead(0, last);
    for (uint64_t i = runs_.begin_of_stretch(turning); i < runs_.size(); ++i) count_in(i);
    for (uint64_t s = 0; s < stretches; ++s) {
      const uint64_t from = s * Runs::STRETCH, limit = s + 1 < stretches ? from + Runs::STRETCH : g_.table;
      fetch_ahead(limit, last);
      if (s < turning)
        for (uint64_t i = runs_.begin_of_stretch(s); i < runs_.end_of_stretch(s); ++i) count_in(i);
      peel_to(from, limit);
    }
    for (uint64_t c = 0; c < TABLES * g_.table; ++c) rest[c] = cells_[c][0];
    mark_left(n);
    return stay_;
  }

private:
  void fetch(int t, uint64_t from, uint64_t to) {
    for (uint64_t c = t * g_.table + from; c < t * g_.table + to; ++c) {
      __builtin_prefetch(sums_ + c + AHEAD);
      __builtin_prefetch(cells_ + c + AHEAD, 1);
      cells_[c] = Cell{sums_[c], 0};
    }
  }

  /* All cells of runs that begin before `limit`, up to `last`: as late as can be, since this brings them into the
   * caches. */
  void fetch_ahead(uint64_t limit, uint64_t last) {
    for (int t = 0; t < TABLES; ++t) {
      const uint64_t to = std::min(last, limit + lane_mask(g_) + (t ? g_.span : 0));
      fetch(t, fetched_[t], to);
      fetched_[t] = to;
    }
  }

  void count_in(uint64_t i) {
    __builtin_prefetch(at_ + runs_.ahead(i).first);
    __builtin_prefetch(at_ + runs_.ahead(i).first + 16);
    const Run run = runs_[i];
    const uint32_t mask = lane_mask(g_);
    const uint64_t upper = i << g_.log_block, next = uint64_t{1} << (32 - g_.log_block);
    uint64_t lower = 1;
    Cell *const to[TABLES] = {&cells_[run.begin[0]], &cells_[run.begin[1]], &cells_[run.begin[2]]};
    for (const uint32_t *at = at_ + run.first, *end = at + runs_.count(i); at < end; ++at, lower += next) {
      const uint32_t lane = *at & mask;
      for (int t = 0; t < TABLES; ++t) to[t][lane][1] += (upper | lane) << 32 | lower;
    }
  }

  void mark_left(uint64_t n) {
    std::memset(left_, stay_ != 0, n);
    if (!stay_) return;
    for (uint64_t k = 0; k < log_; ++k) left_[queue_[k]] = 0;
    for (uint64_t i = 0; i < n; ++i) values_[i] = left_[i] ? 0 : values_[i];
  }

  /* Takes out all that is to be found in the cells before `limit`, which hold all their items; cells before `from`
   * have been searched. */
  void peel_to(uint64_t from, uint64_t limit) {
    const SketchView view = {cells_, runs_.get(), g_.table, g_.log_block};
    const uint64_t counts = view.counts();
    uint32_t *const queue = queue_;
    uint64_t start = end_, end = end_;
    for (int t = 0; t < TABLES; ++t)
      for (uint64_t c = t * g_.table + from; c < t * g_.table + limit; ++c) {
        queue[end] = static_cast<uint32_t>(c);
        end += (view.cells[c][1] & counts) == 1;
      }
    /* A cell joins the queue once at most, so that it has room for all. */
    Batch batch;
    while (start < end) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(Batch::SIZE, end - start));
      const size_t found = steps_.pick(view, queue + start, n, batch);
      steps_.locate(view, found, batch);
      for (size_t k = 0; k < found; ++k) {
        for (int t = 0; t < TABLES; ++t) __builtin_prefetch(cells_ + batch.cells[t][k], 1);
        __builtin_prefetch(values_ + batch.index[k], 1);
      }
      take_out(found, batch);
      end += steps_.push(view, found, limit, batch, queue + end);
      start += n;
      std::memcpy(queue + log_, batch.index, found * sizeof *queue);
      log_ += found;
    }
    end_ = end;
  }

  /* All addresses are known before the first cell changes: no load waits to learn where a store went. */
  void take_out(size_t found, Batch &batch) {
    Cell *const cells = cells_;
    uint64_t again = 0;
    for (size_t k = 0; k < found; ++k) {
      const Cell taken = batch.taken[k];
      if (cells[batch.from[k]][1] != taken[1]) { /* it was alone in two cells of this batch */
        for (int t = 0; t < TABLES; ++t) batch.seen[t][k] = 0;
        ++again;
        continue;
      }
      values_[batch.index[k]] = static_cast<int64_t>(taken[0]);
      for (int t = 0; t < TABLES; ++t) {
        Cell &cell = cells[batch.cells[t][k]];
        cell -= taken;
        batch.seen[t][k] = cell[1];
      }
    }
    stay_ -= found - again;
  }

  const sw_geometry g_;
  const SketchSteps &steps_;
  const uint32_t *at_;
  const uint64_t *sums_;
  int64_t *values_;
  uint8_t *left_;
  uint64_t stay_;
  Runs runs_;
  Scratch scratch_;
  Cell *cells_;
  uint32_t *queue_; /* pure cells, first come, first served; where they are done with, items that were found */
  uint64_t end_ = 0, log_ = 0, fetched_[TABLES] = {};
};

} // namespace
} // namespace sw

using namespace sw;

/* cells += values at the three cells of each of n ascending coordinates. Returns 0, or -1 if there is too little
 * memory. */
SW_API int64_t sw_sketch_insert(const sw_geometry *g, const uint32_t *at, const int64_t *values, uint64_t n,
                                uint64_t *cells) {
  Runs runs(*g, n);
  Scratch scratch(runs.bytes());
  if (!scratch) return -1;
  runs.sort(*g, at, n, steps(), scratch);
  const uint32_t mask = lane_mask(*g);
  for (uint64_t i = 0; i < runs.size(); ++i) {
    const uint32_t next = runs.ahead(i).first;
    for (int line = 0; line < 2; ++line) __builtin_prefetch(at + next + 16 * line);
    for (int line = 0; line < 3; ++line) __builtin_prefetch(values + next + 8 * line);
    const Run run = runs[i];
    uint64_t *const to[TABLES] = {cells + run.begin[0], cells + run.begin[1], cells + run.begin[2]};
    for (uint64_t k = run.first, end = k + runs.count(i); k < end; ++k) {
      const uint64_t value = static_cast<uint64_t>(values[k]);
      const uint32_t lane = at[k] & mask;
      for (int t = 0; t < TABLES; ++t) to[t][lane] += value;
    }
  }
  return 0;
}

/* values[i], or left[i] = 1 where item i stays; rest is what cells hold without those found. Returns how many stay,
 * or -1 if there is too little memory. */
SW_API int64_t sw_sketch_peel(const sw_geometry *g, const uint32_t *at, uint64_t n, const uint64_t *cells,
                              int64_t *values, uint8_t *left, uint64_t *rest) {
  Peeler peeler(*g, at, n, cells, values, left);
  return peeler.ready() ? static_cast<int64_t>(peeler.peel(rest)) : -1;
}
