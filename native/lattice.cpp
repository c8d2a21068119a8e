/* The exported functions that encode and decode: they walk the blocks and hand each to the best operation for this CPU.
 * And the choice of the instruction set. */
#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "lattice_generic.h"

#include "lattice_narrow.h"
#include "walk.h"

namespace sw {

const Ops kPortable = {"portable",      draw_signs,      draw_patterns, generic::sum_squares, generic::to_float,
                       generic::encode, generic::decode, generic::add,  generic::pack,        generic::unpack};

namespace {

std::atomic<int> level_cap{2};

/* Where vector code loads and stores: memory from malloc begins in the middle of a vector as often as not, and then
 * every other access of 32 bytes crosses a cache line. */
template <typename T>
struct InLines {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  InLines() = default;
  template <typename U>
  InLines(const InLines<U> &) {}
  T *allocate(size_t n) { return static_cast<T *>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T *memory, size_t) { ::operator delete(memory, kLine); }
  bool operator==(const InLines &) const { return true; }
  bool operator!=(const InLines &) const { return false; }
};
template <typename T>
using Lines = std::vector<T, InLines<T>>;

/* Memory that a thread keeps between calls, because fresh pages cost page faults. */
struct Scratch {
  std::unique_ptr<Patterns> patterns{new Patterns};
  Lines<int32_t> units;
  Lines<uint8_t> indices;
  Lines<float> values;
  Lines<uint8_t> lanes;

  void grow(size_t block) {
    units.resize(block);
    indices.resize(block);
    values.resize(block);
  }
};

/* The thread's scratch memory for one call. Blocks beyond the usual sizes are rare: their memory is freed. */
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
const float *as_floats(const void *x, int kind, const Block &block, Lines<float> &scratch) {
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
  /* Every CPU with AVX2 and FMA has F16C too; not every compiler can ask for that. */
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
    const float *values = as_floats(x, kind, block, scratch->values);
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
    const float *values = as_floats(x, kind, block, scratch->values);
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
      generic::append_bits(run, n, widths[i], out, bit);
    }
    bit += n * widths[i];
  }
  return -1;
}

namespace {

/* lanes_of(lattice, block size, scratch), called once for every block in turn, returns where its lanes lie. */
template <class LanesOf>
void decode_blocks(const sw_scheme *scheme, const int32_t *counts, const float *scales, const uint8_t *classes,
                   uint32_t sign_key, float *out, uint64_t size, uint64_t lo, uint64_t hi, LanesOf lanes_of) {
  const PlainFloats plain;
  const Ops &best = ops();
  const Blocks blocks(size, scheme->log_block);
  const Borrowed scratch(longest(size, scheme->log_block));
  best.draw_signs(sign_key, drawn(size, scheme->log_block), scratch->patterns->sign);
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

void sw_decode_narrow(const sw_scheme *scheme, const sw_quantizer *quantizers, const uint8_t *coarse,
                      const uint8_t *fine, const uint8_t *widths, const uint8_t *data, const sw_segments *segments,
                      const int32_t *counts, const float *scales, const uint8_t *classes, uint32_t sign_key, float *out,
                      uint64_t size, uint64_t lo, uint64_t hi) {
  const PlainFloats plain;
  const Ops &best = ops();
  const Blocks blocks(size, scheme->log_block);
  const Borrowed scratch(longest(size, scheme->log_block));
  best.draw_signs(sign_key, drawn(size, scheme->log_block), scratch->patterns->sign);
  const NarrowOps &best_narrow = narrow_ops();
  NarrowLanes narrow(*scheme, quantizers);
  uint64_t bit = 0, segment = 0;
  for (uint64_t i = lo; i < hi; ++i) {
    if (segment < segments->count && i == static_cast<uint64_t>(segments->edges[segment]))
      bit = 8 * (segments->bytes_at[segment++] - segments->bytes_at[0]);
    const Block block = blocks[i];
    const size_t n = block.size();
    const sw_lattice &lattice = scheme->lattices[classes[i]];
    const int width = widths[i - lo];
    if (!width) {
      std::memset(out + block.start, 0, n * sizeof(float));
      continue;
    }
    scratch->lanes.resize(std::max<size_t>(scratch->lanes.size(), n * sizeof(uint32_t)));
    const bool exact = width == lattice.lane_bits;
    if (exact) {
      unpack_block(lattice, data, bit, n, scratch->lanes.data());
    } else {
      best_narrow.look_up(narrow, width, data + bit / 8, n, scratch->lanes.data());
      narrow.scheme.lattices[width].decode_gain =
          static_cast<double>(coarse_value(coarse[i - lo])) * fine_value(fine[i - lo]) / quantizers[width].unit;
    }
    bit += n * width;
    const sw_scheme *shown = exact ? scheme : &narrow.scheme;
    const int cls = exact ? classes[i] : width;
    best.decode({shown, scratch->patterns.get(), sign_key, scratch->lanes.data(), lane_bytes(shown->lattices[cls]),
                 exact ? counts[i] : 1, scales[i], block.log_size, cls, out + block.start, scratch->units.data()});
  }
#ifdef SW_X86
  _mm_sfence();
#endif
}
