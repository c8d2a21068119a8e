/* The sparse operations in plain C++, compiled once per instruction set; static for the reason in blocks.h. */
#pragma once
#include "lattice_generic.h"
#include "sparse.h"

namespace sw {
namespace sparse {

static inline int lowest(uint64_t word) { return __builtin_ctzll(word); }

/* The bits of word w that belong to the first n coordinates. */
static inline uint64_t inside(size_t w, size_t n) {
  return n - 64 * w >= 64 ? ~uint64_t{0} : (uint64_t{1} << n % 64) - 1;
}

template <class T>
static inline void scan_run(const T *x, size_t n, uint64_t *words) {
  for (size_t at = 0; at < n; at += 64) {
    const size_t size = n - at < 64 ? n - at : 64;
    uint64_t word = 0;
    for (size_t j = 0; j < size; ++j) word |= static_cast<uint64_t>(x[at + j] != 0) << j;
    words[at / 64] = word;
  }
}

/* work(x as words of that many bytes), which are 2 or 4. */
template <class Work>
static inline auto typed(const void *x, int bytes, Work work) {
  return bytes == 4 ? work(static_cast<const uint32_t *>(x)) : work(static_cast<const uint16_t *>(x));
}

static inline void scan(const void *x, int bytes, size_t n, uint64_t *words) {
  typed(x, bytes, [&](auto *from) { scan_run(from, n, words); });
}

template <class T>
static inline size_t compact_run(const T *x, size_t n, const uint64_t *words, T *values, size_t room) {
  size_t count = 0;
  for (size_t w = 0; 64 * w < n; ++w) {
    uint64_t word = words[w] & inside(w, n);
    if (word == ~uint64_t{0} && room >= count + 64) {
      std::memcpy(values + count, x + 64 * w, 64 * sizeof(T));
      count += 64;
      continue;
    }
    for (; word; word &= word - 1, ++count)
      if (count < room) values[count] = x[64 * w + lowest(word)];
  }
  return count;
}

/* `values` as an array of x's type. */
template <class T>
static inline T *alike(const T *, void *values) {
  return static_cast<T *>(values);
}

static inline size_t compact(const void *x, int bytes, size_t n, const uint64_t *words, void *values, size_t room) {
  return typed(x, bytes, [&](auto *from) { return compact_run(from, n, words, alike(from, values), room); });
}

static inline size_t expand(const uint64_t *words, size_t n, const float *values, size_t have, float *out) {
  size_t used = 0;
  for (size_t w = 0; 64 * w < n; ++w) {
    uint64_t word = words[w] & inside(w, n);
    const size_t size = n - 64 * w < 64 ? n - 64 * w : 64;
    if (word == ~uint64_t{0} && have >= used + 64) {
      std::memcpy(out + 64 * w, values + used, 64 * sizeof(float));
      used += 64;
      continue;
    }
    std::memset(out + 64 * w, 0, size * sizeof(float));
    for (; word && used < have; word &= word - 1)
      std::memcpy(out + 64 * w + lowest(word), values + used++, sizeof(float));
  }
  return used;
}

/* What vector code shares. Whole words are its own, as long as 64 values can be read or written; the rest is plain. */

/* which(x) are the bits of 64 values. */
template <class T, class Which>
static inline void scan_words(const T *x, size_t n, uint64_t *words, Which which) {
  size_t w = 0;
  for (; w < n / 64; ++w) words[w] = which(x + 64 * w);
  scan_run(x + 64 * w, n % 64, words + w);
}

/* pick(word, from, to) copies the values of its set bits; returns the end of those written. */
template <class T, class Pick>
static inline size_t compact_words(const T *x, size_t n, const uint64_t *words, T *values, size_t room, Pick pick) {
  size_t count = 0, w = 0;
  for (; w < n / 64 && count + 64 <= room; ++w) {
    if (words[w]) count = static_cast<size_t>(pick(words[w], x + 64 * w, values + count) - values);
  }
  return count + compact_run(x + 64 * w, n - 64 * w, words + w, values + count, room - count);
}

/* put(word, from, to) writes 64 floats; returns the end of those read. */
template <class Put>
static inline size_t expand_words(const uint64_t *words, size_t n, const float *values, size_t have, float *out,
                                  Put put) {
  size_t used = 0, w = 0;
  for (; w < n / 64 && used + 64 <= have; ++w) {
    used = static_cast<size_t>(put(words[w], values + used, out + 64 * w) - values);
  }
  return used + expand(words + w, n - 64 * w, values + used, have - used, out + 64 * w);
}

/* store(to, from) writes N floats to an address that is a multiple of their size. */
template <size_t N, class Store>
static inline void stream_vectors(float *out, const float *x, size_t n, Store store) {
  const size_t off = reinterpret_cast<uintptr_t>(out) / sizeof(float) % N;
  size_t i = off ? std::min(n, N - off) : 0;
  std::memcpy(out, x, i * sizeof(float));
  for (; i + N <= n; i += N) store(out + i, x + i);
  std::memcpy(out + i, x + i, (n - i) * sizeof(float));
}

static inline float value_of(const void *values, int kind, size_t i) {
  float out;
  if (kind == SW_F32)
    std::memcpy(&out, static_cast<const float *>(values) + i, 4);
  else
    generic::to_float(kind, static_cast<const uint16_t *>(values) + i, 1, &out);
  return out;
}

/* The sum of two floats of which it is a NaN: x86's rule, written in integers for all. */
static inline void add_nan(float *acc, float value) {
  uint32_t a, v;
  std::memcpy(&a, acc, 4);
  std::memcpy(&v, &value, 4);
  const uint32_t quiet = 1u << 22;
  const auto nan = [](uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; };
  const uint32_t sum = nan(a) ? a | quiet : nan(v) ? v | quiet : 0xFFC00000u;
  std::memcpy(acc, &sum, 4);
}

static inline void add_one(float *acc, float value) {
  const float sum = *acc + value;
  if (sum == sum)
    *acc = sum;
  else
    add_nan(acc, value);
}

static inline size_t accumulate(float *acc, size_t n, const uint64_t *words, const void *values, int kind,
                                size_t have) {
  size_t used = 0;
  for (size_t w = 0; 64 * w < n; ++w)
    for (uint64_t word = words[w] & inside(w, n); word && used < have; word &= word - 1)
      add_one(acc + 64 * w + lowest(word), value_of(values, kind, used++));
  return used;
}

static inline void divide(const float *x, size_t n, float divisor, float *out) {
  for (size_t i = 0; i < n; ++i) out[i] = x[i] / divisor;
}

static inline void copy(float *out, const float *x, size_t n) { std::memcpy(out, x, n * sizeof(float)); }

static inline uint64_t count(const uint64_t *words, size_t n) {
  uint64_t sum = 0;
  for (size_t w = 0; w < n; ++w) sum += static_cast<uint64_t>(__builtin_popcountll(words[w]));
  return sum;
}

static inline IndexFacts facts(const uint64_t *words, size_t n) {
  IndexFacts all = {0, 0, 0};
  uint64_t before = 0;
  for (size_t w = 0; w < n; ++w) {
    const uint64_t word = words[w];
    all.count += static_cast<uint64_t>(__builtin_popcountll(word));
    all.runs += static_cast<uint64_t>(__builtin_popcountll(word & ~(word << 1 | before)));
    all.filled += word != 0;
    before = word >> 63;
  }
  return all;
}

static inline size_t positions(const uint64_t *words, size_t n, uint32_t *out) {
  size_t count = 0;
  for (size_t w = 0; w < n; ++w)
    for (uint64_t word = words[w]; word; word &= word - 1) out[count++] = static_cast<uint32_t>(64 * w + lowest(word));
  return count;
}

static inline uint64_t sum_shifted(const uint32_t *v, size_t n, int k) {
  uint32_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += v[i] >> k;
  return sum;
}

static inline void put(BitSink &sink, uint64_t bits, unsigned n) { /* n <= 56 */
  sink.buffer |= bits << sink.fill;
  sink.fill += n;
  std::memcpy(sink.out, &sink.buffer, 8);
  sink.out += sink.fill >> 3;
  sink.buffer >>= sink.fill & 56;
  sink.fill &= 7;
}

static inline void put_rice(BitSink &sink, uint64_t value, int k) {
  uint64_t quotient = value >> k;
  const uint64_t low = value & ((uint64_t{1} << k) - 1);
  while (quotient > 24) { /* with 31 low bits and the zero, 56 */
    const unsigned some = quotient < 48 ? static_cast<unsigned>(quotient) : 48;
    put(sink, (uint64_t{1} << some) - 1, some);
    quotient -= some;
  }
  const unsigned q = static_cast<unsigned>(quotient);
  put(sink, ((uint64_t{1} << q) - 1) | low << (q + 1), q + 1 + static_cast<unsigned>(k));
}

static inline void write_rice(BitSink &sink, const uint32_t *v, size_t n, int k) {
  BitSink local = sink;
  for (size_t i = 0; i < n; ++i) put_rice(local, v[i], k);
  sink = local;
}

} // namespace sparse
} // namespace sw
