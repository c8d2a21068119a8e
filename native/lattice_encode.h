/* From floats to payloads with vectors of any width: blocks of 256 to 4096 coordinates that rotate in int16.
 * lattice_decode.h says what V is and how a run lies in registers. */
#pragma once
#include <type_traits>

#include "lattice_decode.h"

namespace sw {
namespace {

constexpr int kTableFraction = 8; /* fraction bits of the positions that tables are looked up by */

inline bool fits_table(const sw_lattice &lattice) {
  return lattice.fraction_bits == kTableFraction || lattice.fraction_bits == kTableFraction - 1;
}

/* Of 16 words. */
inline int64_t square_of_largest(Vec words) {
  const __m128i top = _mm_max_epu16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  const __m128i ones = _mm_set1_epi16(-1); /* the instruction finds the smallest */
  const int64_t unit = 0xFFFF - (_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(top, ones))) & 0xFFFF);
  return unit * unit;
}

template <class V>
struct Encoder : Decoder<V> {
  using typename Decoder<V>::Int;
  using typename Decoder<V>::Float;
  using Decoder<V>::kLanes, Decoder<V>::kRun, Decoder<V>::kGroup, Decoder<V>::kLogGroup;
  using Decoder<V>::butterfly, Decoder<V>::butterflies, Decoder<V>::before_last;

  static void draw_patterns(Patterns &p, const sw_keys &keys, size_t n) {
    sw::draw_patterns(p, keys, n);
    for (size_t run = 0; run + kRun <= n; run += kRun)
      for (size_t i = 0; i < kRun; ++i) {
        p.paired_sign[run + V::load_order(i)] = p.sign[run + i] ? -1 : 1;
        p.paired_noise[run + V::quantize_order(i)] = p.noise[run + i];
      }
  }

  static double sum_squares(const float *x, size_t n) {
    constexpr int kDoubles = sizeof(Int) / sizeof(double), R = 16 / kDoubles;
    typename V::Double fold[R] = {};
    /* The square of a float32 is exact in float64, so the fused form rounds just as the plain one. */
    const auto add = [&](const float *from) {
      for (int l = 0; l < R; ++l) fold[l] = V::add_square(fold[l], from + kDoubles * l);
    };
    size_t i = 0;
    for (; i + 16 <= n; i += 16) add(x + i);
    if (i < n) {
      float rest[16] = {};
      std::memcpy(rest, x + i, (n - i) * sizeof(float));
      add(rest);
    }
    for (int half = R / 2; half; half /= 2)
      for (int l = 0; l < half; ++l) fold[l] = fold[l] + fold[l + half];
    return V::sum(fold[0]);
  }

  /* Float coordinates to dithered integers, and what the terms' check needs of them. */
  struct Intake {
    Float gain;
    const float *x;
    const Patterns *patterns;
    Int flip; /* of the dither, for this block */
    typename V::Check check = {};

    Int dithered(size_t at) const {
      const Int fixed = V::to_int(V::mul(V::load_floats(x + at), gain));
      return V::add32(fixed, V::xor_(V::load(patterns->half_dither + at), flip));
    }
    /* One register of the run at i: those whose bit e3 (or e4, of 64) is `half`. The highest bit of the coordinate
     * becomes the lowest of the lane. */
    Int operator()(size_t i, int half) {
      const size_t at = i + kLanes / 2 * half;
      if (sizeof(Int) == 64 || half == 0) fetch(x + kAhead + i + kLanes * half);
      const Int low = dithered(at), high = dithered(at + kLanes);
      const Int units = V::upper_halves(low, high);
      check.add(units);
      return V::flip16(units, V::load(patterns->paired_sign + i + kLanes * half));
    }
  };

  /* Rows at distance `stride`: R at a time through log2(R) stages. */
  template <int R>
  static void strided(int16_t *y, size_t n, size_t stride) {
    for (size_t base = 0; base < n; base += R * stride)
      for (size_t o = base; o < base + stride; o += kLanes) {
        Int v[R];
        for (int r = 0; r < R; ++r) v[r] = V::load(y + o + r * stride);
        butterflies(v);
        for (int r = 0; r < R; ++r) V::store(y + o + r * stride, v[r]);
      }
  }

  /* All stages above a group, while coordinates come in. False if they exceed the terms. */
  template <int L>
  static bool take_in(Intake &intake, int16_t *y, int64_t square_limit) {
    constexpr int stages = L - kLogGroup, R = 1 << (stages < 3 ? stages : 3);
    constexpr size_t n = size_t{1} << L, stride = n / R;
    for (size_t o = 0; o < stride; o += kRun) {
      for (int half = 0; half < 2; ++half) {
        Int v[R];
        for (int r = 0; r < R; ++r) v[r] = intake(o + r * stride, half);
        butterflies(v);
        for (int r = 0; r < R; ++r) V::store(y + o + r * stride + kLanes * half, v[r]);
      }
      if ((o + kRun) % 128 == 0) intake.check.fold();
    }
    if (!intake.check.within(square_limit)) return false;
    if constexpr (stages > 3) strided<1 << (stages - 3)>(y, n, kGroup);
    return true;
  }

  struct Evenly { /* table = lattice */
    __m128i f, rest;
    explicit Evenly(int fraction_bits)
        : f(_mm_cvtsi32_si128(fraction_bits)), rest(_mm_cvtsi32_si128(16 - fraction_bits)) {}
    Int operator()(Int a, Int b, Int noise_a, Int noise_b) const {
      a = V::srl16(V::add16(a, V::srl16(noise_a, rest)), f);
      b = V::srl16(V::add16(b, V::srl16(noise_b, rest)), f);
      return V::packus16(a, b);
    }
  };

  /* The last stages of each run: take(i, a, b) gets runs that are rotated, and `bottom` above 0. Each unpack brings up
   * the next bit: e3 (e4), e1, e0, and the highest.
   *
   * Early, `bottom` is added to coordinate 0 of every group: the stages before have spread it that far, the others
   * spread it to all. If it follows from what these find, it comes late, before the last stage, which spreads a to b.
   */
  template <bool Late, class Take>
  static void finish(const int16_t *y, size_t n, int32_t bottom, const Take &take) {
    const Int first = V::only_first(bottom & 0xFFFF), all = V::set16(bottom);
    for (size_t at = 0; at < n; at += kGroup) {
      Int a[4], b[4];
      for (int k = 0; k < 4; ++k) {
        a[k] = V::load(y + at + kRun * k);
        b[k] = V::load(y + at + kRun * k + kLanes);
      }
      if (!Late) a[0] = V::add16(a[0], first);
      butterflies(a);
      butterflies(b);
      for (int k = 0; k < 4; ++k) {
        for (int stage = 0; stage < 3; ++stage) {
          butterfly(a[k], b[k]);
          V::trade16(a[k], b[k]);
        }
        butterfly(a[k], b[k]);
        before_last(a[k], b[k]);
        if (Late) a[k] = V::add16(a[k], all);
        butterfly(a[k], b[k]);
        take(at + kRun * k, a[k], b[k]);
      }
    }
  }

  /* Rotated coordinates times c = 1 + correction / 2**15. */
  struct Uncorrected {
    static constexpr int32_t correction = 0;
    Int operator()(Int v) const { return v; }
  };
  struct Shrunk { /* c < 1, as for all Gaussian blocks */
    int32_t correction;
    Int c = V::set16(32768 + correction);
    Int operator()(Int v) const { return V::mulhrs16(v, c); }
  };
  struct Corrected { /* any c; what would overflow is beyond the range anyway */
    int32_t correction;
    Int change = V::set16(correction);
    Int operator()(Int v) const { return V::add_saturated16(v, V::mulhrs16(v, change)); }
  };

  template <class Correct, class Quantize>
  static void quantize(const EncodeJob &job, const int16_t *y, size_t n, const Correct &correct,
                       const Quantize &quantizer) {
    const sw_lattice &lattice = job.scheme->lattices[job.cls];
    const Int top = V::set16(2 * half_range(lattice)), zero = V::set16(0);
    const Int angle = V::set16(static_cast<int32_t>(turn(*job.keys, job.block)));
    const uint16_t *noise = job.patterns->paired_noise;
    const auto position = [&](Int v) { return V::min16(V::max16(correct(v), zero), top); };
    constexpr bool kLate = !std::is_same<Correct, Uncorrected>::value;
    finish<kLate>(y, n, offset(lattice, correct.correction), [&](size_t i, Int a, Int b) {
      for (size_t line = 16; line < kRun; line += 32) fetch(job.x + kAhead + i + line);
      const Int index = quantizer(position(a), position(b), V::add16(V::load(noise + i), angle),
                                  V::add16(V::load(noise + i + kLanes), angle));
      V::store(job.indices + i, V::in_order(index));
    });
  }

  template <int L>
  static int32_t spiky_correction(const sw_lattice &lattice, const int16_t *y, int64_t squares) {
    constexpr size_t n = size_t{1} << L;
    alignas(64) int16_t rotated[n]; /* in another order, which does not matter */
    finish<false>(y, n, 0, [&](size_t i, Int a, Int b) {
      V::store(rotated + i, a);
      V::store(rotated + i + kLanes, b);
    });
    return generic::improved_correction(lattice, rotated, n, squares);
  }

  /* From indices to the payload, and to what it leaves over. */
  template <int L>
  static void send(const EncodeJob &job) {
    constexpr size_t n = size_t{1} << L;
    const sw_lattice &lattice = job.scheme->lattices[job.cls];
    pack_indices(job, n);
    if (!job.residual) return;
    if (!is_even(lattice, job.width)) {
      const typename V::Values values(job.scheme->tables[job.cls][job.width].bytes64 + 64);
      for (size_t i = 0; i < n; i += sizeof(Int)) V::store(job.indices + i, values(V::load(job.indices + i)));
    }
    const float gain = decode_gain(*job.scheme, job.cls, L, job.scale, 1);
    Decoder<V>::template bytes_to_floats<L>(job.indices, lattice.granularity, gain, job.patterns->sign, job.x,
                                            job.residual);
  }

  template <int L>
  static Done encode(const EncodeJob &job) {
    const sw_scheme &scheme = *job.scheme;
    const sw_lattice &lattice = scheme.lattices[job.cls];
    constexpr size_t n = size_t{1} << L;
    alignas(64) int16_t y[n];
    Intake intake{V::set_floats(encode_gain(scheme, job.cls, L, job.scale)), job.x, job.patterns,
                  V::set32(static_cast<int32_t>(flips(*job.keys, job.block) >> 16))};
    if (!take_in<L>(intake, y, scheme.square_limit[L][job.cls])) return Done::beyond_terms;
    const int64_t squares = intake.check.total();
    const auto round = [&](const auto &quantizer) {
      if (!is_corrected(lattice))
        quantize(job, y, n, Uncorrected{}, quantizer);
      else if (is_spiky(intake.check.largest_square(), squares))
        quantize(job, y, n, Corrected{spiky_correction<L>(lattice, y, squares)}, quantizer);
      else
        quantize(job, y, n, Shrunk{gaussian_correction(lattice, squares)}, quantizer);
    };
    if (is_even(lattice, job.width))
      round(Evenly(lattice.fraction_bits));
    else
      V::with_table(lattice.granularity + 1, job.width, scheme.tables[job.cls][job.width], [&](const auto &table) {
        if (lattice.fraction_bits == kTableFraction)
          round(table);
        else /* one bit less: twice the position is in the table's units, and is carried by the same noise */
          round([&](Int a, Int b, Int noise_a, Int noise_b) {
            return table(V::add16(a, a), V::add16(b, b), noise_a, noise_b);
          });
      });
    send<L>(job);
    return Done::yes;
  }
};

} // namespace
} // namespace sw
