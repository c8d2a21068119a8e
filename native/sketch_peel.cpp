/* Into the sketch's cells, and out again.
 * src/sumwire/kernels/sketch_reference.py defines both functions. */
#include <algorithm>
#include <cstdlib>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "sketch.h"

namespace {

using namespace sw;

constexpr size_t BATCH = 64;
constexpr size_t PAGE = size_t{1} << 21;

/* Memory for n values, on huge pages if it can be: random access costs a page walk each otherwise. */
template <typename T>
class Scratch {
public:
  explicit Scratch(uint64_t n) {
    const size_t bytes = n * sizeof(T), whole = (bytes + PAGE - 1) / PAGE * PAGE;
    data_ = static_cast<T *>(bytes < PAGE ? std::malloc(bytes + 1) : std::aligned_alloc(PAGE, whole));
#if defined(MADV_HUGEPAGE)
    if (data_ && bytes >= PAGE) madvise(data_, whole, MADV_HUGEPAGE);
#endif
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  explicit operator bool() const { return data_; }
  T &operator[](uint64_t i) { return data_[i]; }
  T *get() { return data_; }

private:
  T *data_;
};

struct Cell {
  uint64_t value;
  uint32_t items; /* their numbers, xored */
  uint32_t degree;
};

/* Peeling, first come, first served. Cache misses are the cost: a batch asks for its cells before it touches them. */
class Peeler {
public:
  Peeler(const sw_geometry &g, const uint32_t *at, uint64_t n, uint64_t *cells, int64_t *values, uint8_t *left)
      : g_(g), at_(at), sums_(cells), values_(values), left_(left), stay_(n), count_(TABLES * g.rows << g.log_block),
        cells_(count_), queue_(count_ + 1) {}

  bool ready() const { return cells_ && queue_; }

  uint64_t peel() {
    const uint64_t items = stay_;
    for (uint64_t c = 0; c < count_; ++c) cells_[c] = {sums_[c], 0, 0};
    std::memset(left_, 1, items);
    std::memset(values_, 0, items * sizeof *values_);
    each_item(g_, at_, items, [&](uint64_t item, const uint32_t *where) {
      for (int t = 0; t < TABLES; ++t) {
        Cell &cell = cells_[where[t]];
        cell.items ^= static_cast<uint32_t>(item);
        ++cell.degree;
      }
    });
    /* A cell becomes pure once, so the queue has room for all. */
    uint64_t end = 0;
    for (uint64_t c = 0; c < count_; ++c) {
      queue_[end] = static_cast<uint32_t>(c);
      end += cells_[c].degree == 1;
    }
    for (uint64_t start = 0; start < end;) {
      const uint64_t n = std::min<uint64_t>(BATCH, end - start);
      end = take_out(start, n, end);
      start += n;
    }
    for (uint64_t c = 0; c < count_; ++c) sums_[c] = cells_[c].value;
    return stay_;
  }

private:
  /* Takes the items of n pure cells out of all their cells; cells that become pure by it join the queue. */
  uint64_t take_out(uint64_t start, size_t n, uint64_t end) {
    uint32_t from[BATCH], items[BATCH], where[BATCH][TABLES];
    size_t found = 0;
    for (size_t k = 0; k < n; ++k) {
      const uint32_t pure = queue_[start + k];
      const Cell &cell = cells_[pure];
      from[found] = pure;
      items[found] = cell.items;
      found += cell.degree == 1;
    }
    for (size_t k = 0; k < found; ++k) {
      __builtin_prefetch(&at_[items[k]]);
      __builtin_prefetch(&values_[items[k]], 1);
    }
    for (size_t k = 0; k < found; ++k) {
      place(g_, at_[items[k]], where[k]);
      for (int t = 0; t < TABLES; ++t) __builtin_prefetch(&cells_[where[k][t]], 1);
    }
    for (size_t k = 0; k < found; ++k) {
      const uint32_t item = items[k];
      if (!left_[item]) continue; /* it was alone in two cells */
      left_[item] = 0;
      --stay_;
      const uint64_t value = cells_[from[k]].value;
      values_[item] = static_cast<int64_t>(value);
      for (int t = 0; t < TABLES; ++t) {
        Cell &cell = cells_[where[k][t]];
        cell.value -= value;
        cell.items ^= item;
        --cell.degree;
        queue_[end] = where[k][t];
        end += cell.degree == 1;
      }
    }
    return end;
  }

  const sw_geometry &g_;
  const uint32_t *at_;
  uint64_t *sums_;
  int64_t *values_;
  uint8_t *left_;
  uint64_t stay_, count_;
  Scratch<Cell> cells_;
  Scratch<uint32_t> queue_; /* pure cells, first come, first served */
};

} // namespace

/* cells += values at the three cells of each of n ascending coordinates. */
SW_API void sw_sketch_insert(const sw_geometry *g, const uint32_t *at, const int64_t *values, uint64_t n,
                             uint64_t *cells) {
  each_item(*g, at, n, [&](uint64_t item, const uint32_t *where) {
    for (int t = 0; t < TABLES; ++t) cells[where[t]] += static_cast<uint64_t>(values[item]);
  });
}

/* values[i], or left[i] = 1 where item i stays; cells keep what was not found. Returns how many stay, or -1 if
 * there is too little memory. */
SW_API int64_t sw_sketch_peel(const sw_geometry *g, const uint32_t *at, uint64_t n, uint64_t *cells, int64_t *values,
                              uint8_t *left) {
  Peeler peeler(*g, at, n, cells, values, left);
  return peeler.ready() ? static_cast<int64_t>(peeler.peel()) : -1;
}
