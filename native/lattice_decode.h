/* From sums to floats with vectors of any width, and the butterflies that encoding shares: blocks of 256 to 4096
 * coordinates.
 *
 * A run of coordinates is kept in two registers: 32 of them (index bits e4..e0) where registers have 256 bits, 64
 * (e5..e0) where they have 512. One butterfly works across registers, and an unpack then trades a lane bit for the
 * register bit, so that lane bits come up in turn. Bits above choose the register pair and need no shuffles.
 * Butterflies on wrapping int16 are exact, so their order is free.
 *
 * V names the registers of one instruction set and the instructions on them: lattice_avx2.cpp, lattice_avx512.cpp. */
#pragma once
#include "lattice_planes256.h"

namespace sw {
namespace {

template <class V>
struct Decoder {
  using Int = typename V::Int;
  using Float = typename V::Float;
  static constexpr size_t kLanes = sizeof(Int) / sizeof(int16_t), kRun = 2 * kLanes;
  static constexpr size_t kGroup = 4 * kRun; /* coordinates that the last stages keep in registers */
  static constexpr int kLogGroup = kGroup == 128 ? 7 : 8;

  static void butterfly(Int &a, Int &b) {
    const Int s = V::add16(a, b);
    b = V::sub16(a, b);
    a = s;
  }
  template <int R>
  static void butterflies(Int (&v)[R]) {
    for (int h = 1; h < R; h *= 2)
      for (int i = 0; i < R; ++i)
        if (!(i & h)) butterfly(v[i], v[i + h]);
  }
  /* The stages over the bits that choose a 128-bit part of the register, but for the last butterfly. */
  static void before_last(Int &a, Int &b) {
    if constexpr (sizeof(Int) == 64) {
      V::trade256(a, b);
      butterfly(a, b);
    }
    V::trade128(a, b);
  }

  /* 128 lanes, at most 255 each, through seven stages: below 2^15. Runs end in natural order. */
  static void transform128(const Int (&v)[128 / sizeof(Int)], int16_t *y) {
    constexpr int R = 128 / sizeof(Int);
    Int a[R], b[R];
    for (int k = 0; k < R; ++k) {
      V::widen8(v[k], a[k], b[k]);              /* register e3 */
      for (int stage = 0; stage < 4; ++stage) { /* e3, e2, e1, e0, and back to the start */
        butterfly(a[k], b[k]);
        V::trade16(a[k], b[k]);
      }
      before_last(a[k], b[k]);
      butterfly(a[k], b[k]);
    }
    butterflies(a);
    butterflies(b);
    for (int k = 0; k < R; ++k) V::store_run(y + kRun * k, a[k], b[k]);
  }

  /* Column o of rows of 128 after seven stages, through the other log2(R). With Split, `high` counts 128-fold: lanes
   * above 255 are transformed as seven low bits and the rest. */
  template <int R, bool Split>
  static void widen_rows(const int16_t *y, const int16_t *high, size_t o, Int (&v)[R]) {
    for (int r = 0; r < R; ++r) {
      v[r] = V::widen16(y + 128 * r + o);
      if (Split) v[r] = V::add32(v[r], V::times128(V::widen16(high + 128 * r + o)));
    }
    for (int h = 1; h < R; h *= 2)
      for (int i = 0; i < R; ++i)
        if (!(i & h)) {
          const Int s = V::add32(v[i], v[i + h]);
          v[i + h] = V::sub32(v[i], v[i + h]);
          v[i] = s;
        }
  }

  /* Rows of 128 after seven stages to (2 * sum - center) * gain * sign, or x minus that. The center only moves
   * coordinate 0 of the transform. */
  template <int L, bool Split>
  static void finish_floats(const int16_t *y, const int16_t *high, int64_t center, float gain, const uint32_t *sign,
                            const float *x, float *out) {
    constexpr size_t n = size_t{1} << L, kFloats = sizeof(Int) / sizeof(float);
    constexpr int R = 1 << (L - 7);
    alignas(64) float value[n];
    const Float twice = V::set_floats(2.0f * gain);
    for (size_t o = 0; o < 128; o += kFloats) {
      Int v[R];
      widen_rows<R, Split>(y, high, o, v);
      if (o == 0) v[0] = V::sub32(v[0], V::only_first(static_cast<int32_t>(center << L >> 1)));
      for (int r = 0; r < R; ++r) {
        const size_t at = 128 * r + o;
        const Float f = V::xor_(V::mul(V::to_floats(v[r]), twice), V::load(sign + at));
        if (x) /* x may be out: these are read before they are written */
          V::store_floats(out + at, V::sub(V::load_floats(x + at), f));
        else
          V::store_floats(value + at, f);
      }
    }
    if (x) return;
    if (reinterpret_cast<uintptr_t>(out) % 16) {
      std::memcpy(out, value, sizeof value);
    } else { /* past the caches: a tensor is read much later than it is written. NumPy aligns to 16. */
      for (size_t i = 0; i < n; i += 4) _mm_stream_ps(out + i, _mm_load_ps(value + i));
    }
  }

  template <int L>
  static void bytes_to_floats(const uint8_t *lanes, int64_t center, float gain, const uint32_t *sign, const float *x,
                              float *out) {
    constexpr int R = 128 / sizeof(Int);
    alignas(64) int16_t y[size_t{1} << L];
    for (size_t at = 0; at < size_t{1} << L; at += 128) {
      Int v[R];
      for (int k = 0; k < R; ++k) v[k] = V::load(lanes + at + sizeof(Int) * k);
      transform128(v, y + at);
    }
    finish_floats<L, false>(y, nullptr, center, gain, sign, x, out);
  }

  template <int L>
  static void words_to_floats(const uint8_t *lanes, int64_t center, float gain, const uint32_t *sign, float *out) {
    constexpr int R = 128 / sizeof(Int);
    alignas(64) int16_t y[size_t{1} << L], high[size_t{1} << L];
    for (size_t at = 0; at < size_t{1} << L; at += 128) {
      Int low[R], top[R];
      for (int k = 0; k < R; ++k) {
        const uint8_t *from = lanes + 2 * (at + sizeof(Int) * k);
        V::split7(V::load(from), V::load(from + sizeof(Int)), low[k], top[k]);
      }
      transform128(low, y + at);
      transform128(top, high + at);
    }
    finish_floats<L, true>(y, high, center, gain, sign, nullptr, out);
  }

  /* False where there is no vector code for the block. */
  static bool decode(const DecodeJob &job, int longest) {
    const sw_lattice &lattice = job.scheme->lattices[job.cls];
    if (!job.scheme->rotate || job.scale < kTinyScale || lattice.lane_bits > 15 || job.log_size > longest) return false;
    const int64_t center = int64_t{job.count} * lattice.granularity;
    const float gain = decode_gain(*job.scheme, job.cls, job.log_size, job.scale, job.count);
    return with_size(job.log_size, [&](auto log_size) {
      if (job.lane_bytes == 1)
        bytes_to_floats<log_size>(job.lanes, center, gain, job.patterns->sign, nullptr, job.out);
      else
        words_to_floats<log_size>(job.lanes, center, gain, job.patterns->sign, job.out);
    });
  }
};

} // namespace
} // namespace sw
