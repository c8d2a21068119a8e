/* The exported functions: they walk the blocks and hand each to the best operation for this CPU. */
#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <vector>

#include "lattice_generic.h"

#include "walk.h"

namespace sw {
namespace {

std::atomic<int> level_cap{2};

/* Memory that a thread keeps between calls, because fresh pages fault. */
struct Scratch {
  std::unique_ptr<Patterns> patterns{new Patterns};
  std::vector<int32_t> units;
  std::vector<uint8_t> indices;
  std::vector<float> values;
  std::vector<uint8_t> lanes;

  void grow(size_t block) {
    units.resize(block);
    indices.resize(block);
    values.resize(block);
  }
};

/* The thread's scratch for one call. Blocks beyond the usual sizes are rare: their memory goes back. */
class Borrowed {
public:
  explicit Borrowed(size_t block) : scratch_(kept()) {
    if (scratch_.units.size() < block) scratch_.grow(block);
  }
  ~Borrowed() {
    if (scratch_.units.size() > Patterns::kLongest) scratch_ = Scratch();
  }
  Scratch *operator->() const { return &scratch_; }
  Scratch &operator*() const { return scratch_; }

private:
  static Scratch &kept() {
    thread_local Scratch scratch;
    return scratch;
  }
  Scratch &scratch_;
};

size_t longest(uint64_t size, int log_block) {
  return static_cast<size_t>(std::min<uint64_t>(size, uint64_t{1} << log_block));
}
size_t drawn(uint64_t size, int log_block) { return std::min(longest(size, log_block), Patterns::kLongest); }

const char *address(const void *x, int kind, uint64_t at) {
  const int bytes = kind == SW_F64 ? 8 : kind == SW_F32 ? 4 : 2;
  return static_cast<const char *>(x) + at * bytes;
}

/* One block as float32: in place where it is that already. */
const float *floats(const void *x, int kind, const Block &block, std::vector<float> &scratch) {
  const char *from = address(x, kind, block.start);
  if (kind == SW_F32) return reinterpret_cast<const float *>(from);
  ops().to_float(kind, from, block.size(), scratch.data());
  return scratch.data();
}

float largest(const float *x, size_t n) {
  float top = 0;
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    const float v = std::fabs(x[i]);
    finite &= v <= std::numeric_limits<float>::max();
    top = v > top ? v : top;
  }
  return finite ? top : std::numeric_limits<float>::quiet_NaN();
}

float rms_up(double squares, uint64_t size) {
  const double rms = std::sqrt(squares / static_cast<double>(size));
  const float scale = static_cast<float>(rms);
  return static_cast<double>(scale) < rms ? std::nextafter(scale, std::numeric_limits<float>::infinity()) : scale;
}

} // namespace

const Ops &ops() {
  const int cap = level_cap.load(std::memory_order_relaxed);
#ifdef SW_X86
  /* Whatever has AVX2 and FMA has F16C too; not every compiler can ask for that. */
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                                 __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
  if (cap >= 2 && has_avx512 && avx512_ops()) return *avx512_ops();
  if (cap >= 1 && has_avx2 && avx2_ops()) return *avx2_ops();
#endif
  (void)cap;
  return kPortable;
}

} // namespace sw

using namespace sw;
using generic::pack_bits;
using generic::unpack_bits;

int32_t sw_abi(void) { return SW_ABI; }
const char *sw_level(void) { return ops().name; }

int32_t sw_set_level(int32_t level) {
  level_cap = level;
  return &ops() == avx512_ops() ? 2 : &ops() == avx2_ops() ? 1 : 0;
}

void sw_measure(const sw_scheme *scheme, const void *x, int32_t kind, uint64_t size, float *out, uint64_t lo,
                uint64_t hi) {
  const PlainFloats plain;
  const Blocks blocks(size, scheme->log_block);
  const Borrowed scratch(longest(size, scheme->log_block));
  for (uint64_t i = lo; i < hi; ++i) {
    const Block block = blocks[i];
    const float *values = floats(x, kind, block, scratch->values);
    out[i - lo] =
        scheme->rotate ? rms_up(ops().sum_squares(values, block.size()), block.size()) : largest(values, block.size());
  }
}

int64_t sw_encode(const sw_scheme *scheme, const void *x, int32_t kind, uint64_t size, const float *scales,
                  const uint8_t *classes, const uint8_t *widths, const sw_keys *keys, uint8_t *out, float *residual,
                  uint64_t lo, uint64_t hi) {
  const PlainFloats plain;
  const Ops &best = ops();
  const Blocks blocks(size, scheme->log_block);
  const Borrowed scratch(longest(size, scheme->log_block));
  best.draw_patterns(*scratch->patterns, *keys, drawn(size, scheme->log_block));
  uint64_t bit = 0;
  for (uint64_t i = lo; i < hi; ++i) {
    const Block block = blocks[i];
    const size_t n = block.size();
    const float *values = floats(x, kind, block, scratch->values);
    float *rest = residual ? residual + block.start : nullptr;
    if (!widths[i]) {
      if (rest && rest != values) std::memcpy(rest, values, n * sizeof(float));
      continue;
    }
    const EncodeJob job = {scheme,
                           keys,
                           scratch->patterns.get(),
                           values,
                           rest,
                           scales[i],
                           i,
                           block.log_size,
                           classes[i],
                           widths[i],
                           out + bit / 8,
                           scratch->indices.data(),
                           scratch->units.data()};
    if (best.encode(job) == Done::beyond_terms) return static_cast<int64_t>(i);
    if (n < 8) { /* blocks below a byte come last; their bits follow each other */
      uint32_t run[8];
      std::copy_n(scratch->indices.data(), n, run);
      const uint64_t last = (bit + n * widths[i] + 7) / 8;
      for (uint64_t byte = (bit + 7) / 8; byte < last; ++byte) out[byte] = 0;
      pack_bits(run, n, widths[i], out, bit);
    }
    bit += n * widths[i];
  }
  return -1;
}

void sw_add(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, uint8_t *lanes, uint64_t payloads,
            const uint8_t *const *data, const uint8_t *const *widths, int32_t fresh, uint64_t lo, uint64_t hi) {
  const Ops &best = ops();
  const Blocks blocks(size, scheme->log_block);
  std::vector<uint64_t> bits(payloads, 0);
  std::vector<const uint8_t *> at(payloads);
  std::vector<uint8_t> width(payloads);
  for (uint64_t i = lo; i < hi; ++i) {
    const Block block = blocks[i];
    const size_t n = block.size();
    const int cls = classes[i - lo], per_lane = lane_bytes(scheme->lattices[cls]);
    if (!per_lane) continue; /* nobody sends anything of this block */
    for (uint64_t p = 0; p < payloads; ++p) {
      at[p] = data[p] + bits[p] / 8;
      width[p] = widths[p][i - lo];
    }
    const AddJob job = {scheme, block.log_size, cls, lanes, payloads, at.data(), width.data(), fresh != 0};
    if (n >= 8) {
      best.add(job);
    } else {
      if (fresh) std::memset(lanes, 0, n * per_lane);
      for (uint64_t p = 0; p < payloads; ++p) {
        uint32_t run[8];
        unpack_bits(data[p], bits[p], n, width[p], run);
        for (size_t k = 0; width[p] && k < n; ++k) {
          uint32_t lane = 0; /* little-endian, so that any width is a prefix */
          std::memcpy(&lane, lanes + k * per_lane, per_lane);
          lane += scheme->tables[cls][width[p]].values[run[k]];
          std::memcpy(lanes + k * per_lane, &lane, per_lane);
        }
      }
    }
    for (uint64_t p = 0; p < payloads; ++p) bits[p] += n * width[p];
    lanes += n * per_lane;
  }
}

template <class Lane>
static void add_run(uint8_t *lanes, const uint8_t *other, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    Lane a, b;
    std::memcpy(&a, lanes + i * sizeof a, sizeof a);
    std::memcpy(&b, other + i * sizeof b, sizeof b);
    a = static_cast<Lane>(a + b);
    std::memcpy(lanes + i * sizeof a, &a, sizeof a);
  }
}

void sw_add_lanes(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, uint8_t *lanes, const uint8_t *other,
                  uint64_t lo, uint64_t hi) {
  const Blocks blocks(size, scheme->log_block);
  for (uint64_t i = lo; i < hi; ++i) {
    const size_t n = blocks[i].size();
    const int per_lane = lane_bytes(scheme->lattices[classes[i - lo]]);
    if (per_lane == 1) add_run<uint8_t>(lanes, other, n);
    if (per_lane == 2) add_run<uint16_t>(lanes, other, n);
    if (per_lane == 4) add_run<uint32_t>(lanes, other, n);
    lanes += n * per_lane;
    other += n * per_lane;
  }
}

void sw_pack_lanes(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint8_t *lanes, uint8_t *out,
                   uint64_t lo, uint64_t hi) {
  const Blocks blocks(size, scheme->log_block);
  uint64_t bit = 0;
  for (uint64_t i = lo; i < hi; ++i) {
    const sw_lattice &lattice = scheme->lattices[classes[i - lo]];
    if (!lattice.granularity) continue;
    const size_t n = blocks[i].size();
    const int per_lane = lane_bytes(lattice), width = lattice.lane_bits;
    if (n >= 8) {
      ops().pack(lanes, per_lane, width, n, out + bit / 8);
    } else {
      uint32_t run[8] = {};
      for (size_t k = 0; k < n; ++k) std::memcpy(run + k, lanes + k * per_lane, per_lane);
      const uint64_t last = (bit + n * width + 7) / 8;
      for (uint64_t byte = (bit + 7) / 8; byte < last; ++byte) out[byte] = 0;
      pack_bits(run, n, width, out, bit);
    }
    bit += n * width;
    lanes += n * per_lane;
  }
}

namespace {

/* A block's lanes from the wire, where they begin at some bit, to memory. */
void unpack_block(const sw_lattice &lattice, const uint8_t *data, uint64_t bit, size_t n, uint8_t *lanes) {
  const int per_lane = lane_bytes(lattice), width = lattice.lane_bits;
  if (n >= 8) {
    ops().unpack(data + bit / 8, width, n, per_lane, lanes);
    return;
  }
  uint32_t run[8];
  unpack_bits(data, bit, n, width, run);
  for (size_t k = 0; k < n; ++k) std::memcpy(lanes + k * per_lane, run + k, per_lane);
}

} // namespace

void sw_unpack_lanes(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint8_t *data,
                     uint8_t *lanes, uint64_t lo, uint64_t hi) {
  const Blocks blocks(size, scheme->log_block);
  uint64_t bit = 0;
  for (uint64_t i = lo; i < hi; ++i) {
    const sw_lattice &lattice = scheme->lattices[classes[i - lo]];
    if (!lattice.granularity) continue;
    const size_t n = blocks[i].size();
    unpack_block(lattice, data, bit, n, lanes);
    bit += n * lattice.lane_bits;
    lanes += n * lane_bytes(lattice);
  }
}

namespace {

/* Calls work(lanes, first lane, how many, shift) for each run of a block's lanes that shares a place in its words. */
template <class Work>
void each_run(const sw_lattice &lattice, size_t n, Work work) {
  const size_t words = (n + lattice.lanes_per_word - 1) / lattice.lanes_per_word;
  for (size_t first = 0, shift = 0; first < n; first += words, shift += lattice.lane_bits)
    work(first, std::min(words, n - first), static_cast<int>(shift));
}

template <class Lane>
void pack_words(const sw_lattice &lattice, const uint8_t *lanes, size_t n, size_t words, uint32_t *out) {
  const Lane *from = reinterpret_cast<const Lane *>(lanes);
  std::fill_n(out, words, 0u - lattice.word_bias);
  each_run(lattice, n, [&](size_t first, size_t count, int shift) {
    for (size_t i = 0; i < count; ++i) {
      Lane lane;
      std::memcpy(&lane, from + first + i, sizeof lane);
      out[i] += static_cast<uint32_t>(lane) << shift;
    }
  });
}

template <class Lane>
void unpack_words(const sw_lattice &lattice, const uint32_t *data, size_t n, uint32_t bias, uint8_t *lanes) {
  Lane *to = reinterpret_cast<Lane *>(lanes);
  const uint32_t mask = lattice.lane_bits < 32 ? (1u << lattice.lane_bits) - 1 : ~0u;
  each_run(lattice, n, [&](size_t first, size_t count, int shift) {
    for (size_t i = 0; i < count; ++i) {
      const Lane lane = static_cast<Lane>((data[i] + bias) >> shift & mask);
      std::memcpy(to + first + i, &lane, sizeof lane);
    }
  });
}

} // namespace

void sw_pack_words(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint8_t *lanes, uint32_t *out,
                   uint64_t lo, uint64_t hi) {
  const Blocks blocks(size, scheme->log_block);
  for (uint64_t i = lo; i < hi; ++i) {
    const sw_lattice &lattice = scheme->lattices[classes[i - lo]];
    if (!lattice.granularity) continue;
    const size_t n = blocks[i].size(), words = (n + lattice.lanes_per_word - 1) / lattice.lanes_per_word;
    const int per_lane = lane_bytes(lattice);
    if (per_lane == 1) pack_words<uint8_t>(lattice, lanes, n, words, out);
    if (per_lane == 2) pack_words<uint16_t>(lattice, lanes, n, words, out);
    if (per_lane == 4) pack_words<uint32_t>(lattice, lanes, n, words, out);
    lanes += n * per_lane;
    out += words;
  }
}

void sw_unpack_words(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint32_t *data,
                     uint32_t count, uint8_t *lanes, uint64_t lo, uint64_t hi) {
  const Blocks blocks(size, scheme->log_block);
  for (uint64_t i = lo; i < hi; ++i) {
    const sw_lattice &lattice = scheme->lattices[classes[i - lo]];
    if (!lattice.granularity) continue;
    const size_t n = blocks[i].size(), words = (n + lattice.lanes_per_word - 1) / lattice.lanes_per_word;
    const int per_lane = lane_bytes(lattice);
    const uint32_t bias = count * lattice.word_bias;
    if (per_lane == 1) unpack_words<uint8_t>(lattice, data, n, bias, lanes);
    if (per_lane == 2) unpack_words<uint16_t>(lattice, data, n, bias, lanes);
    if (per_lane == 4) unpack_words<uint32_t>(lattice, data, n, bias, lanes);
    lanes += n * per_lane;
    data += words;
  }
}

namespace {

/* lanes_of(lattice, block size, scratch), called once for every block in turn, tells where its lanes lie. */
template <class LanesOf>
void decode_blocks(const sw_scheme *scheme, const int32_t *counts, const float *scales, const uint8_t *classes,
                   uint32_t sign_key, float *out, uint64_t size, uint64_t lo, uint64_t hi, LanesOf lanes_of) {
  const PlainFloats plain;
  const Ops &best = ops();
  const Blocks blocks(size, scheme->log_block);
  const Borrowed scratch(longest(size, scheme->log_block));
  best.draw_signs(*scratch->patterns, sign_key, drawn(size, scheme->log_block));
  for (uint64_t i = lo; i < hi; ++i) {
    const Block block = blocks[i];
    const sw_lattice &lattice = scheme->lattices[classes[i]];
    const uint8_t *lanes = lanes_of(lattice, block.size(), *scratch);
    if (!lattice.granularity || counts[i] <= 0) {
      std::memset(out + block.start, 0, block.size() * sizeof(float));
      continue;
    }
    const DecodeJob job = {scheme,
                           scratch->patterns.get(),
                           sign_key,
                           lanes,
                           lane_bytes(lattice),
                           counts[i],
                           scales[i],
                           block.log_size,
                           classes[i],
                           out + block.start,
                           scratch->units.data()};
    best.decode(job);
  }
#ifdef SW_X86
  _mm_sfence(); /* decoded floats may have bypassed the caches: order them before what comes next */
#endif
}

} // namespace

void sw_decode(const sw_scheme *scheme, const uint8_t *lanes, const int32_t *counts, const float *scales,
               const uint8_t *classes, uint32_t sign_key, float *out, uint64_t size, uint64_t lo, uint64_t hi) {
  const auto next = [&](const sw_lattice &lattice, uint64_t n, Scratch &) {
    const uint8_t *here = lanes;
    lanes += n * lane_bytes(lattice);
    return here;
  };
  decode_blocks(scheme, counts, scales, classes, sign_key, out, size, lo, hi, next);
}

void sw_decode_packed(const sw_scheme *scheme, const uint8_t *data, const int32_t *counts, const float *scales,
                      const uint8_t *classes, uint32_t sign_key, float *out, uint64_t size, uint64_t lo, uint64_t hi) {
  uint64_t bit = 0;
  const auto next = [&](const sw_lattice &lattice, uint64_t n, Scratch &scratch) {
    scratch.lanes.resize(std::max<size_t>(scratch.lanes.size(), n * sizeof(uint32_t)));
    if (lattice.granularity) unpack_block(lattice, data, bit, n, scratch.lanes.data());
    bit += lattice.granularity ? n * lattice.lane_bits : 0;
    return static_cast<const uint8_t *>(scratch.lanes.data());
  };
  decode_blocks(scheme, counts, scales, classes, sign_key, out, size, lo, hi, next);
}
