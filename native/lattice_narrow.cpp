/* The exported functions of narrow sums. */
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

uint8_t coarse_of(float value) {
  const uint32_t bits = bits_of(value), mantissa = bits & 0x7FFFFF;
  int nearest = 0;
  for (uint32_t above : kAbove) nearest += above <= mantissa;
  const int eighths = 8 * (static_cast<int>(bits >> 23) - 127) + nearest;
  return static_cast<uint8_t>(std::min(std::max(kOne + eighths, 1), 255));
}

uint8_t fine_of(double ratio) {
  double k;
  if (ratio < 0.875) {
    k = std::nearbyint((ratio - 0.5) * 64.0);
  } else if (ratio < 1.125) {
    k = 24.0 + std::nearbyint((ratio - 0.875) * 512.0);
  } else if (ratio < 1.5) {
    k = 152.0 + std::nearbyint((ratio - 1.125) * 64.0);
  } else {
    int exponent;
    const double mantissa = std::frexp(ratio / 1.5, &exponent);
    k = 176.0 + 16.0 * (exponent - 1) + std::nearbyint((2.0 * mantissa - 1.0) * 16.0);
  }
  return static_cast<uint8_t>(std::min(std::max(k, 0.0), 255.0));
}

int bit_length(int64_t v) {
  int bits = 0;
  for (; v > 0; v >>= 1) ++bits;
  return bits;
}

/* Blocks whose widths are chosen together. Whole ones come first, all of one size: their widths are summed at once. */
struct Choice {
  std::vector<int32_t> level, exact;
  std::vector<int64_t> cost;
  size_t whole = 0;

  void clear() {
    level.clear();
    exact.clear();
    cost.clear();
    whole = 0;
  }
  void add(float scale, int64_t energy, uint8_t lanes, uint64_t size) {
    const bool small = size < kLeastBlock;
    level.push_back(static_cast<int32_t>((bits_of(scale) >> 15) * energy));
    exact.push_back(lanes);
    cost.push_back(small ? 0 : static_cast<int64_t>(size));
    whole += whole + 1 == cost.size() && cost.back() == cost.front() && !small;
  }
  int32_t at(size_t i, int32_t c) const { return cost[i] ? generic::width_at(level[i], exact[i], c) : exact[i]; }
  int64_t total(int32_t c) const {
    int64_t sum = whole ? narrow_ops().widths(level.data(), exact.data(), whole, c) * cost[0] : 0;
    for (size_t i = whole; i < level.size(); ++i) sum += at(i, c) * cost[i];
    return sum;
  }
  void solve(int64_t budget, uint8_t *out) const {
    int32_t most = 0;
    for (int32_t l : level) most = std::max(most, l);
    int32_t low = -most, high = kWidest << 16;
    while (low < high) {
      const int32_t middle = (low + high + 1) >> 1; /* floor, as in Python */
      if (total(middle) <= budget)
        low = middle;
      else
        high = middle - 1;
    }
    int64_t left = budget - total(low);
    for (size_t i = 0; i < level.size(); ++i) {
      const int32_t width = at(i, low), wider = at(i, low + 1);
      const int64_t more = (wider - width) * cost[i];
      const bool widen = more > 0 && more <= left;
      if (widen) left -= more;
      out[i] = static_cast<uint8_t>(widen ? wider : width);
    }
  }
};

/* Widths of one segment's blocks a..b. */
void widths_of(const sw_scheme *scheme, const Blocks &blocks, const uint8_t *classes, const float *scales,
               const uint8_t *coarse, int64_t energy, int64_t budget, uint64_t a, uint64_t b, Choice &choice,
               uint8_t *out) {
  choice.clear();
  for (uint64_t i = a; i < b; ++i) {
    const sw_lattice &lattice = scheme->lattices[classes[i]];
    const uint8_t lanes = coarse[i - a] && lattice.granularity ? static_cast<uint8_t>(lattice.lane_bits) : 0;
    choice.add(scales[i] * coarse_value(coarse[i - a]), energy, lanes, blocks[i].size());
  }
  choice.solve(budget, out);
}

/* A block's lanes around 0, and their rms. */
struct Measured {
  NarrowJob job;
  int64_t squares;
  double rms;

  Measured(const sw_lattice &lattice, const uint8_t *lanes, int log_size, int32_t count) {
    const int64_t top = int64_t{std::max(count, 0)} * lattice.granularity;
    job = {lanes, lane_bytes(lattice), log_size, top, std::max(bit_length(top) - kShifted, 0)};
    squares = top ? narrow_ops().squares(job) : 0;
    rms = std::sqrt(static_cast<double>(squares) / static_cast<double>(job.size()));
  }
  uint8_t coarse(const sw_lattice &lattice, int32_t count) const {
    if (!squares) return 0;
    return coarse_of(
        static_cast<float>(std::ldexp(rms, job.shift) * (lattice.decode_gain / static_cast<double>(count))));
  }
  NarrowGains gains(const sw_quantizer &quantizer, int width) const {
    int log;
    std::frexp(rms, &log);
    log -= 1;
    const int room = 15 - bit_length(job.top);
    int exponent = 11 - log;
    if (quantizer.density && room >= 0) exponent = std::max(room, 7 - log);
    exponent = std::min(exponent, 14); /* a block of few lanes other than 0: these are beyond the last level */
    NarrowGains out = {&quantizer, width, std::max(exponent, 0), std::max(-exponent, 0), {}};
    const double deviation = std::ldexp(rms, exponent);
    const auto gain = [&](double v) { return static_cast<int64_t>(std::min(std::nearbyint(v / deviation), 65535.0)); };
    if (quantizer.density) out.gain[0] = gain(quantizer.density * 65536.0);
    for (int k = 0; !quantizer.density && k < 5; ++k) out.gain[k] = gain(quantizer.slopes[k] * 16.0);
    return out;
  }
};

/* Indices of a block, or lanes that it keeps, from bit `bit` on. */
void pack_run(const uint8_t *values, int per_value, int width, size_t n, uint8_t *data, uint64_t bit) {
  if (n >= 8) return ops().pack(values, per_value, width, n, data + bit / 8);
  uint32_t run[8] = {};
  for (size_t k = 0; k < n; ++k) std::memcpy(run + k, values + k * per_value, per_value);
  generic::append_bits(run, n, width, data, bit);
}

} // namespace

const NarrowOps &narrow_ops() { return like_ops<NarrowOps>(kPlain, avx2_narrow_ops(), nullptr); }

} // namespace sw

using namespace sw;

void sw_allocate_sums(const float *scales, uint64_t size, int32_t log_block, const uint8_t *lanes, int64_t budget,
                      int64_t energy, uint8_t *out) {
  const Blocks blocks(size, log_block);
  Choice choice;
  for (uint64_t i = 0; i < blocks.count(); ++i) choice.add(scales[i], energy, lanes[i], blocks[i].size());
  choice.solve(budget, out);
}

void sw_narrow_widths(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const float *scales,
                      const uint8_t *coarse, const sw_segments *segments, uint8_t *out, uint64_t lo, uint64_t) {
  const PlainFloats plain;
  const Blocks blocks(size, scheme->log_block);
  Choice choice;
  for (uint64_t s = 0; s < segments->count; ++s) {
    const uint64_t a = segments->edges[s], b = segments->edges[s + 1];
    widths_of(scheme, blocks, classes, scales, coarse + (a - lo), segments->energy, segments->budgets[s], a, b, choice,
              out + (a - lo));
  }
}

void sw_narrow(const sw_scheme *scheme, const sw_quantizer *quantizers, uint64_t size, const uint8_t *classes,
               const float *scales, const int32_t *counts, const uint8_t *lanes, const sw_segments *segments,
               uint8_t *coarse, uint8_t *fine, uint8_t *data, uint64_t lo, uint64_t) {
  const PlainFloats plain;
  const Blocks blocks(size, scheme->log_block);
  Choice choice;
  std::vector<Measured> measured;
  std::vector<uint8_t> widths, indices(std::min<uint64_t>(size, uint64_t{1} << scheme->log_block));
  for (uint64_t s = 0; s < segments->count; ++s) {
    const uint64_t a = segments->edges[s], b = segments->edges[s + 1];
    measured.clear();
    for (uint64_t i = a; i < b; ++i) {
      const sw_lattice &lattice = scheme->lattices[classes[i]];
      measured.emplace_back(lattice, lanes, blocks[i].log_size, counts[i - lo]);
      coarse[i - lo] = measured.back().coarse(lattice, counts[i - lo]);
      lanes += blocks[i].size() * lane_bytes(lattice);
    }
    widths.resize(b - a);
    widths_of(scheme, blocks, classes, scales, coarse + (a - lo), segments->energy, segments->budgets[s], a, b, choice,
              widths.data());
    uint8_t *const begin = data + (segments->bytes_at[s] - segments->bytes_at[0]);
    uint64_t bit = 0;
    for (uint64_t i = a; i < b; ++i) {
      const Measured &block = measured[i - a];
      const sw_lattice &lattice = scheme->lattices[classes[i]];
      const int width = widths[i - a];
      fine[i - lo] = 0;
      if (!width) continue;
      if (width == lattice.lane_bits) {
        pack_run(block.job.lanes, block.job.per_lane, width, block.job.size(), begin, bit);
      } else {
        const sw_quantizer &quantizer = quantizers[width];
        const int64_t product = narrow_ops().quantize(block.job, block.gains(quantizer, width), indices.data());
        const double scale =
            std::ldexp(static_cast<double>(block.squares) / static_cast<double>(product), block.job.shift);
        const double ideal = static_cast<double>(coarse_value(coarse[i - lo])) * static_cast<double>(counts[i - lo]) /
                             lattice.decode_gain / quantizer.unit;
        fine[i - lo] = fine_of(scale / ideal);
        pack_run(indices.data(), 1, width, block.job.size(), begin, bit);
      }
      bit += block.job.size() * width;
    }
    const uint64_t used = (bit + 7) / 8, room = segments->bytes_at[s + 1] - segments->bytes_at[s];
    std::memset(begin + used, 0, room - used);
  }
}
