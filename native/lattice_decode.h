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
  static constexpr int kMiddle = 1 << 14; /* of words: around it, sums of two fit in 16 bits */

  static void butterfly(Int &a, Int &b) {
    const Int s = V::add16(a, b);
    b = V::sub16(a, b);
    a = s;
  }
  static void butterfly32(Int &a, Int &b) {
    const Int s = V::add32(a, b);
    b = V::sub32(a, b);
    a = s;
  }
  template <int R>
  static void butterflies(Int (&v)[R]) {
    for (int h = 1; h < R; h *= 2)
      for (int i = 0; i < R; ++i)
        if (!(i & h)) butterfly(v[i], v[i + h]);
  }
  /* The stages over the bits that choose a 128-bit part of the register, but for the last butterfly. */
  template <void Butterfly(Int &, Int &) = butterfly>
  static void before_last(Int &a, Int &b) {
    if constexpr (sizeof(Int) == 64) {
      V::trade256(a, b);
      Butterfly(a, b);
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

  /* 128 words below 2^15, less 2^14 each, through seven stages: one in 16 bits, one that widens, the rest in 32. */
  static void transform128(const uint8_t *lanes, int32_t *y) {
    constexpr int R = 256 / sizeof(Int);
    Int a[R], b[R];
    for (int k = 0; k < R; ++k) a[k] = V::pair_words(V::sub16(V::load(lanes + sizeof(Int) * k), V::set16(kMiddle)));
    for (int k = 0; k < R; k += 2) butterfly(a[k], a[k + 1]);
    for (int k = 0; k < R; ++k) {
      b[k] = V::madd16(a[k], V::set32(static_cast<int32_t>(0xFFFF0001))); /* 1 and -1 */
      a[k] = V::madd16(a[k], V::set32(0x00010001));
      for (int stage = 0; stage < 2; ++stage) {
        V::trade32(a[k], b[k]);
        butterfly32(a[k], b[k]);
      }
      before_last<butterfly32>(a[k], b[k]);
      butterfly32(a[k], b[k]);
    }
    for (int h = 2; h < R; h *= 2) /* neighbors have met already */
      for (int k = 0; k < R; ++k)
        if (!(k & h)) {
          butterfly32(a[k], a[k + h]);
          butterfly32(b[k], b[k + h]);
        }
    for (int k = 0; k < R; ++k) {
      V::store(y + kLanes * k, a[k]);
      V::store(y + kLanes * k + kLanes / 2, b[k]);
    }
  }

  static Int widen(const int16_t *row) { return V::widen16(row); }
  static Int widen(const int32_t *row) { return V::load(row); }

  /* Column o of rows of 128 after seven stages, through the other log2(R). */
  template <int R, typename Value>
  static void widen_rows(const Value *y, size_t o, Int (&v)[R]) {
    for (int r = 0; r < R; ++r) v[r] = widen(y + 128 * r + o);
    for (int h = 1; h < R; h *= 2)
      for (int i = 0; i < R; ++i)
        if (!(i & h)) butterfly32(v[i], v[i + h]);
  }

  /* Rows of 128 after seven stages to (2 * sum - center) * gain * sign, or x minus that. The center only moves
   * coordinate 0 of the transform. Floats go past the caches: a tensor is read much later than it is written. Parts of
   * a cache line must not come apart then, so that all but whole lines are collected first. */
  template <int L, typename Value>
  static void finish_floats(const Value *y, int64_t center, float gain, const uint32_t *sign, const float *x,
                            float *out) {
    constexpr size_t n = size_t{1} << L, kFloats = sizeof(Int) / sizeof(float);
    constexpr int R = 1 << (L - 7);
    constexpr bool kWholeLines = sizeof(Float) == 64;
    const bool aligned = reinterpret_cast<uintptr_t>(out) % sizeof(Float) == 0;
    alignas(64) float value[n];
    const Float twice = V::set_floats(2.0f * gain);
    for (size_t o = 0; o < 128; o += kFloats) {
      Int v[R];
      widen_rows(y, o, v);
      if (o == 0) v[0] = V::sub32(v[0], V::only_first(static_cast<int32_t>(center << L >> 1)));
      for (int r = 0; r < R; ++r) {
        const size_t at = 128 * r + o;
        const Float f = V::xor_(V::mul(V::to_floats(v[r]), twice), V::load(sign + at));
        if (x) /* x may be out: these are read before they are written */
          V::store_floats(out + at, V::sub(V::load_floats(x + at), f));
        else if (kWholeLines && aligned)
          V::stream_floats(out + at, f);
        else
          V::store_floats(value + at, f);
      }
    }
    if (!x && !(kWholeLines && aligned)) stream(value, n, out);
  }

  /* Past the caches, but for what lies before and behind whole vectors: NumPy aligns to 16 bytes. */
  static void stream(const float *value, size_t n, float *out) {
    constexpr size_t kFloats = sizeof(Float) / sizeof(float);
    const uintptr_t beyond = reinterpret_cast<uintptr_t>(out) % sizeof(Float);
    size_t i = beyond % sizeof(float) ? n : (sizeof(Float) - beyond) / sizeof(float) % kFloats;
    std::memcpy(out, value, i * sizeof(float));
    for (; i + kFloats <= n; i += kFloats) V::stream_floats(out + i, V::load_floats(value + i));
    std::memcpy(out + i, value + i, (n - i) * sizeof(float));
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
    finish_floats<L>(y, center, gain, sign, x, out);
  }

  template <int L>
  static void words_to_floats(const uint8_t *lanes, int64_t center, float gain, const uint32_t *sign, float *out) {
    alignas(64) int32_t y[size_t{1} << L];
    for (size_t at = 0; at < size_t{1} << L; at += 128) transform128(lanes + 2 * at, y + at);
    finish_floats<L>(y, center - 2 * kMiddle, gain, sign, nullptr, out);
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
