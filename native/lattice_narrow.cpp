/* The exported functions of narrow sums. */
#include "lattice_generic.h"

#include "lattice_narrow.h"

#include "walk.h"

namespace sw {
namespace {

constexpr size_t kLeastBlock = 64;
constexpr int kWidest = 33;

const NarrowOps kPlain = {generic::measure, generic::quantize, generic::look_up, generic::widths};

int bit_length(int64_t v) { return v > 0 ? 64 - __builtin_clzll(static_cast<uint64_t>(v)) : 0; }

/* Blocks a..b, whose widths are chosen together. Whole ones come first: their widths are summed at once. */
class Choice {
public:
  explicit Choice(const Blocks &blocks) : blocks_(blocks), ops_(narrow_ops()) {}

  void start(uint64_t a, uint64_t b) {
    first_ = a;
    level_.resize(b - a);
    exact_.resize(b - a);
    const uint64_t size = b > a ? blocks_[a].size() : 0, whole = std::max(std::min(b, blocks_.whole()), a);
    whole_ = size < kLeastBlock ? 0 : whole - a;
    whole_cost_ = static_cast<int64_t>(size);
  }
  void set(uint64_t i, float scale, int64_t energy, uint8_t lanes) {
    level_[i - first_] = static_cast<int32_t>((generic::bits_of(scale) >> 15) * energy);
    exact_[i - first_] = lanes;
  }
  void solve(int64_t budget, uint8_t *out) const {
    int32_t most = 0;
    for (int32_t l : level_) most = std::max(most, l);
    int32_t low = -most, high = kWidest << 16;
    while (low < high) {
      const int32_t middle = (low + high + 1) >> 1; /* floor, as in Python */
      if (total(middle) <= budget)
        low = middle;
      else
        high = middle - 1;
    }
    int64_t left = budget - total(low);
    for (size_t i = 0; i < level_.size(); ++i) {
      const int32_t width = at(i, low), wider = at(i, low + 1);
      const int64_t more = (wider - width) * cost(i);
      const bool widen = more > 0 && more <= left;
      left -= widen ? more : 0;
      out[i] = static_cast<uint8_t>(widen ? wider : width);
    }
  }

private:
  int64_t cost(size_t i) const {
    if (i < whole_) return whole_cost_;
    const uint64_t size = blocks_[first_ + i].size();
    return size < kLeastBlock ? 0 : static_cast<int64_t>(size);
  }
  int32_t at(size_t i, int32_t c) const { return cost(i) ? generic::width_at(level_[i], exact_[i], c) : exact_[i]; }
  int64_t total(int32_t c) const {
    int64_t sum = ops_.widths(level_.data(), exact_.data(), whole_, c) * whole_cost_;
    for (size_t i = whole_; i < level_.size(); ++i) sum += at(i, c) * cost(i);
    return sum;
  }

  const Blocks &blocks_;
  const NarrowOps &ops_;
  std::vector<int32_t> level_, exact_;
  uint64_t first_ = 0;
  size_t whole_ = 0;
  int64_t whole_cost_ = 0;
};

/* Widths of one segment's blocks a..b. */
void widths_of(const sw_scheme *scheme, const uint8_t *classes, const float *scales, const uint8_t *coarse,
               int64_t energy, int64_t budget, uint64_t a, uint64_t b, Choice &choice, uint8_t *out) {
  choice.start(a, b);
  for (uint64_t i = a; i < b; ++i) {
    const sw_lattice &lattice = scheme->lattices[classes[i]];
    const uint8_t lanes = coarse[i - a] && lattice.granularity ? static_cast<uint8_t>(lattice.lane_bits) : 0;
    choice.set(i, scales[i] * coarse_value(coarse[i - a]), energy, lanes);
  }
  choice.solve(budget, out);
}

/* Lanes that a block keeps, from bit `bit` on. */
void pack_run(const uint8_t *values, int per_value, int width, size_t n, uint8_t *data, uint64_t bit) {
  if (n >= 8) return ops().pack(values, per_value, width, n, data + bit / 8);
  uint32_t run[8] = {};
  for (size_t k = 0; k < n; ++k) std::memcpy(run + k, values + k * per_value, per_value);
  generic::append_bits(run, n, width, data, bit);
}

/* Narrows the blocks of one segment after the other. */
class Narrowing {
public:
  Narrowing(const sw_scheme &scheme, const sw_quantizer *quantizers, const Blocks &blocks)
      : scheme_(scheme), tables_(quantizers), blocks_(blocks), best_(narrow_ops()) {}

  /* Blocks a..b, of which counts, lanes and coarse begin there. Returns where the next lanes begin. */
  const uint8_t *measure(uint64_t a, uint64_t b, const uint8_t *classes, const int32_t *counts, const uint8_t *lanes,
                         uint8_t *coarse) {
    narrowed_.resize(b - a);
    for (uint64_t i = a; i < b; ++i) {
      NarrowBlock &block = narrowed_[i - a];
      block = usual(classes[i], counts[i - a]);
      block.lanes = lanes;
      block.log_size = static_cast<int8_t>(blocks_[i].log_size);
      lanes += block.size() * block.per_lane;
    }
    lane_bytes_ = static_cast<size_t>(lanes - (narrowed_.empty() ? lanes : narrowed_[0].lanes));
    best_.measure(narrowed_.data(), narrowed_.size());
    for (size_t i = 0; i < narrowed_.size(); ++i) coarse[i] = narrowed_[i].coarse;
    return lanes;
  }
  /* Returns the bytes that were written. */
  uint64_t quantize(const uint8_t *classes, const uint8_t *widths, uint8_t *out, uint8_t *fine) {
    uint64_t bit = 0;
    for (size_t i = 0; i < narrowed_.size(); ++i) {
      NarrowBlock &block = narrowed_[i];
      const int width = widths[i];
      fetch_next(block);
      block.out = out + bit / 8;
      if (width && width != scheme_.lattices[classes[i]].lane_bits)
        best_.quantize(tables_, width, block);
      else if (width)
        pack_run(block.lanes, block.per_lane, width, block.size(), out, bit);
      bit += static_cast<uint64_t>(width) << block.log_size;
    }
    for (size_t i = 0; i < narrowed_.size(); ++i) fine[i] = narrowed_[i].fine;
    return (bit + 7) / 8;
  }

private:
  /* Fetches the next segment's lanes into the cache: measuring them would wait for the memory, quantizing does not. */
  void fetch_next(const NarrowBlock &block) const {
    const size_t bytes = block.size() * block.per_lane;
    const uint8_t *const from = block.lanes + lane_bytes_;
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(from + line, 0, 2);
  }
  /* What blocks of one class and count have in common. */
  const NarrowBlock &usual(int cls, int32_t count) {
    NarrowBlock &block = usual_[cls];
    if (block.decode_gain != 0 && block.count == count) return block;
    const sw_lattice &lattice = scheme_.lattices[cls];
    block = {};
    block.decode_gain = lattice.decode_gain;
    block.mean_gain = lattice.decode_gain / static_cast<double>(count);
    block.top = int64_t{std::max(count, 0)} * lattice.granularity;
    block.count = count;
    block.per_lane = static_cast<int8_t>(lane_bytes(lattice));
    block.shift = static_cast<int8_t>(std::max(bit_length(block.top) - generic::kShifted, 0));
    block.room = static_cast<int8_t>(15 - bit_length(block.top));
    return block;
  }

  const sw_scheme &scheme_;
  const NarrowTables tables_;
  const Blocks &blocks_;
  const NarrowOps &best_;
  NarrowBlock usual_[SW_MAX_BITS + 1] = {}; /* by class, of the last count */
  std::vector<NarrowBlock> narrowed_;
  size_t lane_bytes_ = 0; /* of the segment */
};

} // namespace

const NarrowOps &narrow_ops() { return like_ops<NarrowOps>(kPlain, avx2_narrow_ops(), nullptr); }

} // namespace sw

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
    widths_of(scheme, classes, scales, coarse + (a - lo), segments->energy, segments->budgets[s], a, b, choice,
              out + (a - lo));
  }
}

void sw_narrow(const sw_scheme *scheme, const sw_quantizer *quantizers, uint64_t size, const uint8_t *classes,
               const float *scales, const int32_t *counts, const uint8_t *lanes, const sw_segments *segments,
               uint8_t *coarse, uint8_t *fine, uint8_t *data, uint64_t lo, uint64_t) {
  const PlainFloats plain;
  const Blocks blocks(size, scheme->log_block);
  Narrowing narrowing(*scheme, quantizers, blocks);
  Choice choice(blocks);
  std::vector<uint8_t> widths;
  for (uint64_t s = 0; s < segments->count; ++s) {
    const uint64_t a = segments->edges[s], b = segments->edges[s + 1], at = a - lo;
    widths.resize(b - a);
    lanes = narrowing.measure(a, b, classes, counts + at, lanes, coarse + at);
    widths_of(scheme, classes, scales, coarse + at, segments->energy, segments->budgets[s], a, b, choice,
              widths.data());
    uint8_t *const begin = data + (segments->bytes_at[s] - segments->bytes_at[0]);
    const uint64_t used = narrowing.quantize(classes + a, widths.data(), begin, fine + at);
    std::memset(begin + used, 0, segments->bytes_at[s + 1] - segments->bytes_at[s] - used);
  }
}
