/* The exported functions of narrow sums. */
#include <array>

#include "lattice_generic.h"

#include "lattice_narrow.h"

#include "walk.h"

namespace sw {
namespace {

constexpr size_t kLeastBlock = 64;
constexpr int kWidest = 33, kShifted = 20;

const NarrowOps kPlain = {generic::squares, generic::quantize, generic::look_up, generic::widths};
/* Mantissa bits at which the next eighth of an octave is nearer. */
constexpr uint32_t kAbove[8] = {371395, 1164243, 2028850, 2971711, 3999908, 5121164, 6343903, 7677309};

uint32_t bits_of(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return bits;
}

/* floor(log2(v)) of a normal v above 0. */
int log2_of(double v) {
  uint64_t bits;
  std::memcpy(&bits, &v, 8);
  return static_cast<int>(bits >> 52) - 1023;
}

/* Nearest integer, ties to even, of a v below 2^51: libm's takes ten times as long. */
double nearest(double v) { return (v + 0x1.8p52) - 0x1.8p52; }

uint8_t coarse_of(float value) {
  const uint32_t bits = bits_of(value), mantissa = bits & 0x7FFFFF;
  int eighths = 8 * (static_cast<int>(bits >> 23) - 127);
  for (uint32_t above : kAbove) eighths += above <= mantissa;
  return static_cast<uint8_t>(std::min(std::max(kOne + eighths, 1), 255));
}

uint8_t fine_of(double ratio) {
  double k;
  if (ratio < 0.875) {
    k = nearest((ratio - 0.5) * 64.0);
  } else if (ratio < 1.125) {
    k = 24.0 + nearest((ratio - 0.875) * 512.0);
  } else if (ratio < 1.5) {
    k = 152.0 + nearest((ratio - 1.125) * 64.0);
  } else {
    const int exponent = log2_of(ratio / 1.5);
    k = 176.0 + 16.0 * exponent + nearest((ratio / 1.5 * power_of_two(-exponent) - 1.0) * 16.0);
  }
  return static_cast<uint8_t>(std::min(std::max(k, 0.0), 255.0));
}

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
    level_[i - first_] = static_cast<int32_t>((bits_of(scale) >> 15) * energy);
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

/* What blocks of one class and count have in common. */
struct Lanes {
  const sw_lattice *lattice = nullptr; /* null: not known yet */
  int32_t count = 0;
  int64_t top = 0; /* lanes are in 0..top */
  int per_lane = 0, shift = 0, room = 0;
  double gain = 0; /* from lanes to the mean */

  Lanes() = default;
  Lanes(const sw_lattice &of, int32_t payloads)
      : lattice(&of), count(payloads), top(int64_t{std::max(payloads, 0)} * of.granularity), per_lane(lane_bytes(of)),
        shift(std::max(bit_length(top) - kShifted, 0)), room(15 - bit_length(top)),
        gain(of.decode_gain / static_cast<double>(payloads)) {}

  uint8_t coarse(double rms) const { return coarse_of(static_cast<float>(rms * power_of_two(shift) * gain)); }
  /* How the block's magnitudes become indices. */
  void set_gains(NarrowBlock &block, const sw_quantizer &quantizer, double rms) const {
    const int log = log2_of(rms);
    int exponent = 11 - log;
    if (quantizer.density && room >= 0) exponent = std::max(room, 7 - log);
    exponent = std::min(exponent, 14); /* a block of few lanes other than 0: these are beyond the last level */
    block.up = std::max(exponent, 0);
    block.down = std::max(-exponent, 0);
    const double deviation = rms * power_of_two(exponent);
    const auto gain_of = [&](double v) { return static_cast<int32_t>(nearest(std::min(v / deviation, 65535.0))); };
    if (quantizer.density) block.gain[0] = gain_of(quantizer.density * 65536.0);
    for (int k = 0; !quantizer.density && k < 5; ++k) block.gain[k] = gain_of(quantizer.slopes[k] * 16.0);
  }
  /* From the sums of squares and of |lane| * level. */
  uint8_t fine(int64_t squares, int64_t product, uint8_t coarse, const sw_quantizer &quantizer) const {
    const double scale = static_cast<double>(squares) / static_cast<double>(product) * power_of_two(shift);
    const double value = coarse_value(coarse);
    return fine_of(scale / (value * static_cast<double>(count) / lattice->decode_gain / quantizer.unit));
  }
};

/* Lanes that a block keeps, from bit `bit` on. */
void pack_run(const uint8_t *values, int per_value, int width, size_t n, uint8_t *data, uint64_t bit) {
  if (n >= 8) return ops().pack(values, per_value, width, n, data + bit / 8);
  uint32_t run[8] = {};
  for (size_t k = 0; k < n; ++k) std::memcpy(run + k, values + k * per_value, per_value);
  generic::append_bits(run, n, width, data, bit);
}

/* A segment to be narrowed. Each step is a loop over its blocks, so that the scalar arithmetic of one block overlaps
 * with that of the next. */
class Segment {
public:
  Segment(const sw_scheme &scheme, const sw_quantizer *quantizers, const Blocks &blocks)
      : scheme_(scheme), tables_(quantizers), blocks_(blocks), best_(narrow_ops()) {}

  /* Blocks a..b; counts and lanes begin there. */
  void start(uint64_t a, uint64_t b, const uint8_t *classes, const int32_t *counts, const uint8_t *lanes) {
    first_ = a;
    classes_ = classes + a;
    counts_ = counts;
    lanes_ = lanes;
    squares_.resize(b - a);
    rms_.resize(b - a);
  }
  void measure(uint8_t *coarse) {
    const uint8_t *from = lanes_;
    for (size_t i = 0; i < squares_.size(); ++i) {
      const Lanes &here = lanes_of(i);
      const NarrowJob job = {from, here.per_lane, blocks_[first_ + i].log_size, here.top, here.shift};
      squares_[i] = here.top ? best_.squares(job) : 0;
      from += job.size() * here.per_lane;
    }
    for (size_t i = 0; i < squares_.size(); ++i)
      rms_[i] = std::sqrt(static_cast<double>(squares_[i]) * power_of_two(-blocks_[first_ + i].log_size));
    for (size_t i = 0; i < squares_.size(); ++i) coarse[i] = squares_[i] ? lanes_of(i).coarse(rms_[i]) : 0;
  }
  /* Returns the bits that were written. */
  uint64_t quantize(const uint8_t *widths, uint8_t *out, const uint8_t *coarse, uint8_t *fine) {
    arrange(widths);
    std::array<size_t, kKinds> next = begins_;
    uint64_t bit = 0;
    for (size_t i = 0; i < squares_.size(); ++i) {
      const Lanes &here = lanes_of(i);
      const int log_size = blocks_[first_ + i].log_size, width = widths[i], kind = kind_of(i, width);
      const size_t size = size_t{1} << log_size;
      fine[i] = 0;
      if (kind) {
        NarrowBlock &block = narrowed_[next[kind]];
        block.job = {lanes_, here.per_lane, log_size, here.top, here.shift};
        block.out = out + bit / 8;
        here.set_gains(block, tables_.quantizers[width], rms_[i]);
        which_[next[kind]++] = i;
      } else if (width) {
        pack_run(lanes_, here.per_lane, width, size, out, bit);
      }
      bit += size * width;
      lanes_ += size * here.per_lane;
    }
    for (int kind = 1; kind < kKinds; ++kind) {
      const size_t from = begins_[kind], n = next[kind] - from;
      if (n) best_.quantize(tables_, kind / 3, 1 << kind % 3, narrowed_.data() + from, n);
    }
    for (size_t k = 0; k < which_.size(); ++k) {
      const size_t i = which_[k];
      fine[i] = lanes_of(i).fine(squares_[i], narrowed_[k].product, coarse[i], tables_.quantizers[widths[i]]);
    }
    return bit;
  }
  const uint8_t *lanes() const { return lanes_; } /* of the next block to quantize */

private:
  /* Blocks that are quantized alike: of one width and of lanes of 1, 2 or 4 bytes. 0: keeps its lanes. */
  static constexpr int kKinds = 3 * (SW_MAX_BITS + 1);
  int kind_of(size_t i, int width) const {
    const sw_lattice &lattice = scheme_.lattices[classes_[i]];
    if (width == 0 || width == lattice.lane_bits) return 0;
    return 3 * width + (lattice.lane_bits > 8) + (lattice.lane_bits > 16);
  }
  /* Where blocks of each kind begin among those to be quantized. */
  void arrange(const uint8_t *widths) {
    begins_ = {};
    for (size_t i = 0; i < squares_.size(); ++i) ++begins_[kind_of(i, widths[i])];
    size_t total = 0;
    begins_[0] = 0;
    for (size_t &begin : begins_) {
      const size_t count = begin;
      begin = total;
      total += count;
    }
    narrowed_.resize(total);
    which_.resize(total);
  }
  const Lanes &lanes_of(size_t i) {
    Lanes &known = known_[classes_[i]];
    if (!known.lattice || known.count != counts_[i]) known = Lanes(scheme_.lattices[classes_[i]], counts_[i]);
    return known;
  }

  const sw_scheme &scheme_;
  const NarrowTables tables_;
  const Blocks &blocks_;
  const NarrowOps &best_;
  Lanes known_[SW_MAX_BITS + 1]; /* the last of each class */
  uint64_t first_ = 0;
  const uint8_t *classes_ = nullptr, *lanes_ = nullptr;
  const int32_t *counts_ = nullptr;
  std::vector<int64_t> squares_;
  std::vector<double> rms_;
  std::array<size_t, kKinds> begins_;
  std::vector<NarrowBlock> narrowed_;
  std::vector<size_t> which_; /* the same blocks in the segment */
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
  Segment segment(*scheme, quantizers, blocks);
  Choice choice(blocks);
  std::vector<uint8_t> widths;
  for (uint64_t s = 0; s < segments->count; ++s) {
    const uint64_t a = segments->edges[s], b = segments->edges[s + 1], at = a - lo;
    widths.resize(b - a);
    segment.start(a, b, classes, counts + at, lanes);
    segment.measure(coarse + at);
    widths_of(scheme, classes, scales, coarse + at, segments->energy, segments->budgets[s], a, b, choice,
              widths.data());
    uint8_t *const begin = data + (segments->bytes_at[s] - segments->bytes_at[0]);
    const uint64_t used = (segment.quantize(widths.data(), begin, coarse + at, fine + at) + 7) / 8;
    std::memset(begin + used, 0, segments->bytes_at[s + 1] - segments->bytes_at[s] - used);
    lanes = segment.lanes();
  }
}
