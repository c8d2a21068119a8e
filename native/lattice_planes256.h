/* Bit planes, lane packing and the table add in 256-bit vectors, for lattice_avx2.cpp and lattice_avx512.cpp.
 * Everything is in an unnamed namespace: see blocks.h. */
#pragma once
#include <immintrin.h>

#include <type_traits>

#include "lattice_generic.h"

namespace sw {
namespace {

using Vec = __m256i;

inline Vec load(const void *p) { return _mm256_loadu_si256(static_cast<const Vec *>(p)); }
inline void store(void *p, Vec v) { _mm256_storeu_si256(static_cast<Vec *>(p), v); }

/* Coordinates are fetched into the cache this far before they are needed, half of a block's lines while it comes in and
 * half while it is quantized: all at once would wait for memory, which then idles for the rest of the time. */
constexpr size_t kAhead = 2048;
inline void fetch(const void *p) { _mm_prefetch(static_cast<const char *>(p), _MM_HINT_T0); }

inline bool is_even(const sw_lattice &lattice, int width) { return lattice.granularity == (1 << width) - 1; }

/* 32 words below 256 as bytes, in order; and back, by halves. */
inline Vec bytes_of(Vec a, Vec b) { return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xD8); }
inline Vec widen(Vec v, int half) {
  return _mm256_cvtepu8_epi16(half ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v));
}

/* A table of 16 * Parts bytes. Each further 16 are applied as a difference to the ones before:
 * where index < 16 k, index - 16 k is negative and the shuffle gives 0. */
template <int Parts>
struct Lookup {
  Vec part[Parts];
  explicit Lookup(const uint8_t *table) {
    for (int k = Parts - 1; k >= 0; --k) {
      part[k] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table + 16 * k)));
      if (k + 1 < Parts) part[k + 1] = _mm256_xor_si256(part[k + 1], part[k]);
    }
  }
  Vec operator()(Vec index) const {
    Vec out = _mm256_shuffle_epi8(part[0], index);
    for (int k = 1; k < Parts; ++k) {
      const Vec beyond = _mm256_sub_epi8(index, _mm256_set1_epi8(static_cast<char>(16 * k)));
      out = _mm256_xor_si256(out, _mm256_shuffle_epi8(part[k], beyond));
    }
    return out;
  }
};

/* Bit planes of a group of 256 lanes: v[k] holds one byte of lanes 32k .. 32k + 31. */

/* Shifts by a constant, to the left if above 0. Bits that come from the neighboring byte are to be masked. */
template <int By>
inline Vec shift(Vec v) {
  if constexpr (By > 0) return _mm256_slli_epi16(v, By);
  if constexpr (By < 0) return _mm256_srli_epi16(v, -By);
  return v;
}

template <int P, int Shift, int K>
inline Vec field(Vec v) { /* P bits from `Shift` on, as the K-th field of their byte */
  return _mm256_and_si256(shift<P * K - Shift>(v), _mm256_set1_epi8(static_cast<char>(((1 << P) - 1) << P * K)));
}
template <int P, int Shift, int K = 0>
inline Vec fields(const Vec *v) { /* of v[0], v[P], v[2 * P] and so on */
  if constexpr (K == 8 / P - 1)
    return field<P, Shift, K>(v[P * K]);
  else
    return _mm256_or_si256(field<P, Shift, K>(v[P * K]), fields<P, Shift, K + 1>(v));
}
template <int P, int Shift>
inline uint8_t *pack_plane(const Vec (&v)[8], uint8_t *out) {
  for (int i = 0; i < P; ++i) store(out + 32 * i, fields<P, Shift>(v + i)); /* 8 / P lanes in each byte */
  return out + 32 * P;
}
template <int Width>
inline uint8_t *pack_group(const Vec (&v)[8], uint8_t *out) {
  if constexpr (Width == 8) return pack_plane<8, 0>(v, out);
  if constexpr (Width & 4) out = pack_plane<4, 0>(v, out);
  if constexpr (Width & 2) out = pack_plane<2, Width & 4>(v, out);
  if constexpr (Width & 1) out = pack_plane<1, Width & 6>(v, out);
  return out;
}

template <int P, int Shift, int K = 0>
inline void unpack_fields(Vec byte, Vec *v) {
  const Vec mask = _mm256_set1_epi8(static_cast<char>(((1 << P) - 1) << Shift));
  const Vec field = _mm256_and_si256(shift<Shift - P * K>(byte), mask);
  v[P * K] = Shift ? _mm256_or_si256(v[P * K], field) : field;
  if constexpr (K < 8 / P - 1) unpack_fields<P, Shift, K + 1>(byte, v);
}
template <int P, int Shift>
inline const uint8_t *unpack_plane(const uint8_t *data, Vec (&v)[8]) {
  for (int i = 0; i < P; ++i) unpack_fields<P, Shift>(load(data + 32 * i), v + i);
  return data + 32 * P;
}
template <int Width>
inline const uint8_t *unpack_group(const uint8_t *data, Vec (&v)[8]) {
  if constexpr (Width == 8) return unpack_plane<8, 0>(data, v);
  if constexpr (Width & 4) data = unpack_plane<4, 0>(data, v);
  if constexpr (Width & 2) data = unpack_plane<2, Width & 4>(data, v);
  if constexpr (Width & 1) data = unpack_plane<1, Width & 6>(data, v);
  return data;
}

template <int N>
using Number = std::integral_constant<int, N>;

/* Calls f with the width (1..8) as a compile-time constant. */
template <class F>
inline void with_width(int width, const F &f) {
  switch (width) {
  case 1: return f(Number<1>{});
  case 2: return f(Number<2>{});
  case 3: return f(Number<3>{});
  case 4: return f(Number<4>{});
  case 5: return f(Number<5>{});
  case 6: return f(Number<6>{});
  case 7: return f(Number<7>{});
  default: return f(Number<8>{});
  }
}

/* Calls f with log2 of the block size as a constant; false where there is no vector code for it. */
template <class F>
inline bool with_size(int log_size, const F &f) {
  switch (log_size) {
  case 8: f(Number<8>{}); return true;
  case 9: f(Number<9>{}); return true;
  case 10: f(Number<10>{}); return true;
  case 11: f(Number<11>{}); return true;
  case 12: f(Number<12>{}); return true;
  default: return false;
  }
}

/* The payload of a block, from its indices. */
inline void pack_indices(const EncodeJob &job, size_t n) {
  with_width(job.width, [&](auto width) {
    uint8_t *out = job.out;
    for (size_t at = 0; at < n; at += 256) {
      Vec v[8];
      for (int k = 0; k < 8; ++k) v[k] = load(job.indices + at + 32 * k);
      out = pack_group<width>(v, out);
    }
  });
}

inline void pack(const uint8_t *lanes, int per_lane, int width, size_t n, uint8_t *out) {
  if (n < 256 || per_lane > 2) return generic::pack(lanes, per_lane, width, n, out);
  if (width == 8 * per_lane) {
    std::memcpy(out, lanes, n * per_lane);
    return;
  }
  const Vec low = _mm256_set1_epi16(255);
  with_width(width - 8 * (per_lane - 1), [&](auto rest) {
    for (size_t at = 0; at < n; at += 256) {
      Vec v[8];
      for (int k = 0; k < 8; ++k) {
        if (per_lane == 1) {
          v[k] = load(lanes + at + 32 * k);
          continue;
        }
        const uint8_t *from = lanes + 2 * (at + 32 * k);
        const Vec a = load(from), b = load(from + 32);
        store(out + 32 * k, bytes_of(_mm256_and_si256(a, low), _mm256_and_si256(b, low)));
        v[k] = bytes_of(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
      }
      if (per_lane == 2) out += 256;
      out = pack_group<rest>(v, out);
    }
  });
}

inline void unpack(const uint8_t *data, int width, size_t n, int per_lane, uint8_t *lanes) {
  if (n < 256 || per_lane > 2) return generic::unpack(data, width, n, per_lane, lanes);
  if (width == 8 * per_lane) {
    std::memcpy(lanes, data, n * per_lane);
    return;
  }
  with_width(width - 8 * (per_lane - 1), [&](auto rest) {
    for (size_t at = 0; at < n; at += 256) {
      Vec v[8];
      const uint8_t *bytes = data;
      if (per_lane == 2) data += 256;
      data = unpack_group<rest>(data, v);
      for (int k = 0; k < 8; ++k) {
        if (per_lane == 1) {
          store(lanes + at + 32 * k, v[k]);
          continue;
        }
        const Vec lower = load(bytes + 32 * k);
        for (int half = 0; half < 2; ++half)
          store(lanes + 2 * (at + 32 * k + 16 * half),
                _mm256_or_si256(widen(lower, half), _mm256_slli_epi16(widen(v[k], half), 8)));
      }
    }
  });
}

/* lanes (or 0, if fresh) += bytes of 256 lanes. */
inline void add_bytes(const Vec (&sum)[8], uint8_t *lanes, int per_lane, bool fresh) {
  for (int k = 0; k < 8; ++k) {
    if (per_lane == 1) {
      store(lanes + 32 * k, fresh ? sum[k] : _mm256_add_epi8(load(lanes + 32 * k), sum[k]));
      continue;
    }
    for (int half = 0; half < 2; ++half) {
      uint8_t *to = lanes + 2 * (32 * k + 16 * half);
      store(to, fresh ? widen(sum[k], half) : _mm256_add_epi16(load(to), widen(sum[k], half)));
    }
  }
}

/* The table add. `lookup(parts, bytes)` makes a lookup of 16 * parts bytes. Payloads are summed in
 * bytes for as long as those hold, then join the lanes: 256 lanes stay in registers meanwhile. */
template <class MakeLookup>
void add_payloads(const AddJob &job, const MakeLookup &make_lookup) {
  const sw_lattice &lattice = job.scheme->lattices[job.cls];
  const sw_table *tables = job.scheme->tables[job.cls];
  const int per_lane = lane_bytes(lattice);
  bool fast = job.log_size >= 8 && per_lane <= 2 && lattice.granularity <= 255;
  for (uint64_t p = 0; p < job.payloads; ++p) {
    const int width = job.widths[p];
    fast &= width == 0 || is_even(lattice, width) || (width <= 5 && tables[width].bytes64);
  }
  if (!fast) return generic::add(job);
  const uint64_t at_once = 255 / lattice.granularity;
  const size_t n = size_t{1} << job.log_size;
  for (size_t at = 0; at < n; at += 256) {
    bool fresh = job.fresh;
    for (uint64_t p = 0; p < job.payloads; fresh = false) {
      Vec sum[8] = {};
      for (const uint64_t stop = std::min(p + at_once, job.payloads); p < stop; ++p) {
        if (job.widths[p] == 0) continue;
        with_width(job.widths[p], [&](auto width) {
          const uint8_t *data = job.data[p] + at / 8 * width;
          for (int line = 0; line < 32 * width; line += 64) fetch(data + 1024 + line);
          Vec v[8];
          unpack_group<width>(data, v);
          if (is_even(lattice, width)) {
            for (int k = 0; k < 8; ++k) sum[k] = _mm256_add_epi8(sum[k], v[k]);
          } else if constexpr (width <= 5) {
            const auto values = make_lookup(Number<(width <= 4 ? 1 : 2)>{}, tables[width].bytes64 + 64);
            for (int k = 0; k < 8; ++k) sum[k] = _mm256_add_epi8(sum[k], values(v[k]));
          }
        });
      }
      add_bytes(sum, job.lanes + at * per_lane, per_lane, fresh);
    }
  }
}

} // namespace
} // namespace sw
