/* The exported function that narrows a complete sum, segment by segment. */
#include "lattice_generic.h"

#include "narrow_widths.h"

namespace sw {
namespace {

const NarrowOps kPlain = {generic::measure, generic::quantize, generic::look_up, generic::widths};

int bit_length(int64_t v) { return v > 0 ? 64 - __builtin_clzll(static_cast<uint64_t>(v)) : 0; }

/* Lanes that a block keeps, from bit `bit` on. */
void pack_run(const NarrowBlock &block, int width, uint8_t *data, uint64_t bit) {
  const size_t n = block.size();
  if (n >= 8) return ops().pack(block.lanes, block.per_lane, width, n, data + bit / 8);
  uint32_t run[8] = {};
  for (size_t k = 0; k < n; ++k) std::memcpy(run + k, block.lanes + k * block.per_lane, block.per_lane);
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
    run_.resize(b - a);
    for (uint64_t i = a; i < b; ++i) {
      const size_t k = i - a;
      const Kind &kind = kind_of(classes[i], counts[k]);
      NarrowBlock &block = run_.block[k];
      block = kind.block;
      block.lanes = lanes;
      block.log_size = static_cast<int8_t>(blocks_[i].log_size);
      run_.mean_gain[k] = kind.mean_gain;
      run_.lanes_gain[k] = kind.lanes_gain;
      run_.inverse_size[k] = power_of_two(-block.log_size);
      lanes += block.size() * block.per_lane;
    }
    best_.measure(run_);
    std::copy(run_.coarse.begin(), run_.coarse.end(), coarse);
    return lanes;
  }
  /* Returns the bytes that were written. */
  uint64_t quantize(const uint8_t *classes, const uint8_t *widths, uint8_t *out, uint8_t *fine) {
    for (auto &which : of_width_) which.clear();
    uint64_t bit = 0;
    for (size_t i = 0; i < run_.size(); ++i) {
      NarrowBlock &block = run_.block[i];
      const int width = widths[i];
      block.out = out + bit / 8;
      run_.fine[i] = 0;
      if (width && width == scheme_.lattices[classes[i]].lane_bits)
        pack_run(block, width, out, bit);
      else if (width)
        of_width_[width].push_back(static_cast<uint32_t>(i));
      bit += static_cast<uint64_t>(width) << block.log_size;
    }
    for (int width = 1; width <= SW_MAX_BITS; ++width)
      if (!of_width_[width].empty()) best_.quantize(tables_, width, run_, of_width_[width]);
    std::copy(run_.fine.begin(), run_.fine.end(), fine);
    return (bit + 7) / 8;
  }

private:
  /* What blocks of one class and count have in common. */
  struct Kind {
    NarrowBlock block = {};
    int32_t count = -1;
    double mean_gain = 0, lanes_gain = 0;
  };
  const Kind &kind_of(int cls, int32_t count) {
    Kind &kind = kinds_[cls];
    if (kind.count == count) return kind;
    const sw_lattice &lattice = scheme_.lattices[cls];
    NarrowBlock &block = kind.block;
    kind.count = count;
    block.top = std::max(count, 0) * lattice.granularity;
    block.per_lane = static_cast<int8_t>(lane_bytes(lattice));
    block.shift = static_cast<int8_t>(std::max(bit_length(block.top) - generic::kShifted, 0));
    block.room = static_cast<int8_t>(15 - bit_length(block.top));
    kind.mean_gain = lattice.decode_gain / static_cast<double>(count) * power_of_two(block.shift);
    kind.lanes_gain = static_cast<double>(count) / lattice.decode_gain;
    return kind;
  }

  const sw_scheme &scheme_;
  const NarrowTables tables_;
  const Blocks &blocks_;
  const NarrowOps &best_;
  Kind kinds_[SW_MAX_BITS + 1]; /* by class, of the last count */
  NarrowBlocks run_;
  std::vector<uint32_t> of_width_[SW_MAX_BITS + 1];
};

} // namespace

const NarrowOps &narrow_ops() { return like_ops<NarrowOps>(kPlain, avx2_narrow_ops(), avx512_narrow_ops()); }

} // namespace sw

using namespace sw;

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
    choose_widths(*scheme, classes, scales, coarse + at, segments->energy, segments->budgets[s], a, b, choice,
                  widths.data());
    uint8_t *const begin = data + (segments->bytes_at[s] - segments->bytes_at[0]);
    const uint64_t used = narrowing.quantize(classes + a, widths.data(), begin, fine + at);
    std::memset(begin + used, 0, segments->bytes_at[s + 1] - segments->bytes_at[s] - used);
  }
}
