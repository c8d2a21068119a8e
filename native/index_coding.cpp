/* The bitmap of a shard as bytes: index_coding.py defines the six modes and how one is chosen. */
#include <algorithm>
#include <limits>

#include "sparse_generic.h"

namespace sw {
namespace {

enum Mode : int32_t { EMPTY, GAPS, RUNS, PLAIN, WORDS, FULL };
enum Error : int32_t { FINE, TRUNCATED, MODE, PARAMETER, COUNT, BEYOND, PADDING, ENDLESS, EMPTY_WORD };

constexpr int kMaxK = 31;
constexpr uint64_t kMaxCount = 0xFFFFFFFFu;
constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
constexpr size_t kGroup = 64; /* words whose positions are found at once; 4096 of them fit 12 bits */

uint64_t words_of(uint64_t bits) { return (bits + 63) / 64; }
uint64_t bytes_of(uint64_t bits) { return (bits + 7) / 8; }

/* Calls work(first, rest, n) for each group of words in which something begins: `first` is the distance from what
 * came before the group, `rest` the n distances after it. */
template <class Work>
uint64_t each_distance(const SparseOps &best, const uint64_t *words, uint64_t n, bool toggles, Work work) {
  uint32_t at[64 * kGroup + 16], rest[64 * kGroup];
  uint64_t changed[kGroup], before = 0, last = 0;
  const uint32_t skip = toggles ? 0 : 1; /* a gap begins behind the bit before */
  for (uint64_t w = 0; w < n; w += kGroup) {
    const size_t group = static_cast<size_t>(std::min<uint64_t>(kGroup, n - w));
    const uint64_t *source = words + w;
    if (toggles) {
      for (size_t i = 0; i < group; ++i) {
        changed[i] = source[i] ^ (source[i] << 1 | before);
        before = source[i] >> 63;
      }
      source = changed;
    }
    const size_t found = best.positions(source, group, at);
    if (!found) continue;
    for (size_t i = 1; i < found; ++i) rest[i - 1] = at[i] - at[i - 1] - skip;
    work(64 * w + at[0] - last, rest, found - 1);
    last = 64 * w + at[found - 1] + skip;
  }
  return last;
}

/* Calls work(is a run of ones, its length) for each run up to the last of ones. */
template <class Work>
void each_run(const SparseOps &best, const uint64_t *words, uint64_t bits, Work work) {
  bool ones = false;
  const uint64_t last =
      each_distance(best, words, words_of(bits), true, [&](uint64_t first, const uint32_t *rest, size_t n) {
        work(ones, first);
        ones = !ones;
        for (size_t i = 0; i < n; ++i, ones = !ones) work(ones, uint64_t{rest[i]});
      });
  if (ones) work(true, bits - last); /* nothing ends a run that fills the last word */
}

/* n numbers that add up to `sum`: their Rice codes, as far as that tells. */
struct Estimate {
  uint64_t n, sum;
  uint64_t most(int k) const { return n * (k + 1) + (sum >> k); }
  uint64_t least(int k) const {
    const uint64_t lost = (uint64_t{1} << k) - 1; /* a quotient drops at most this much of its number */
    return n * (k + 1) + (n && lost <= sum / n ? (sum - n * lost) >> k : 0);
  }
  uint64_t least() const {
    uint64_t best = kNever;
    for (int k = 0; k <= kMaxK; ++k) best = std::min(best, least(k));
    return best;
  }
  /* Bit set of the parameters that may be best. */
  uint32_t candidates() const {
    uint64_t best = kNever;
    uint32_t out = 0;
    for (int k = 0; k <= kMaxK; ++k) best = std::min(best, most(k));
    for (int k = 0; k <= kMaxK; ++k)
      if (least(k) <= best) out |= 1u << k;
    return out;
  }
};

struct Best {
  uint64_t cost;
  int k;
};

Best best_of(uint64_t n, const uint64_t (&quotients)[kMaxK + 1], uint32_t candidates) {
  Best best = {kNever, 0};
  for (int k = 0; k <= kMaxK; ++k)
    if (candidates >> k & 1 && n * (k + 1) + quotients[k] < best.cost) best = {n * (k + 1) + quotients[k], k};
  return best;
}

/* Position of the highest bit, plus one. */
uint64_t reach(const uint64_t *words, uint64_t n) {
  while (n && !words[n - 1]) --n;
  return n ? 64 * n - static_cast<uint64_t>(__builtin_clzll(words[n - 1])) : 0;
}

void take(sw_index_plan &plan, uint64_t bytes, int32_t mode, int k0 = 0, int k1 = 0) {
  if (bytes < plan.bytes || (bytes == plan.bytes && mode < plan.mode)) {
    plan.bytes = bytes;
    plan.mode = mode;
    plan.k0 = k0;
    plan.k1 = k1;
  }
}

/* Modes 1 and 2. Their zeros lie between the same ones, and a gap within a run is 0: so the quotients of the gaps
 * and of the runs of zeros add up to the same. */
void plan_rice(const SparseOps &best, const uint64_t *words, uint64_t bits, const IndexFacts &facts,
               sw_index_plan &plan) {
  const uint64_t n = words_of(bits), zeros = reach(words, n) - facts.count;
  const Estimate gaps = {facts.count, zeros}, spaces = {facts.runs, zeros},
                 ones = {facts.runs, facts.count - facts.runs};
  const bool gaps_may = 6 + bytes_of(gaps.least()) <= plan.bytes;
  const bool runs_may = 7 + bytes_of(spaces.least() + ones.least()) <= plan.bytes;
  if (!gaps_may && !runs_may) return;
  const uint32_t wanted = gaps.candidates() | spaces.candidates(), tried = ones.candidates();
  uint64_t quotients[kMaxK + 1] = {}, lengths[kMaxK + 1] = {};
  const auto add_runs = [&] {
    each_run(best, words, bits, [&](bool is_ones, uint64_t length) {
      uint64_t *sums = is_ones ? lengths : quotients;
      for (uint32_t set = is_ones ? tried : wanted; set; set &= set - 1) {
        const int k = __builtin_ctz(set);
        sums[k] += (length - is_ones) >> k;
      }
    });
  };
  const bool few_runs = 2 * facts.runs < facts.count;
  if (few_runs) {
    add_runs();
  } else {
    each_distance(best, words, n, false, [&](uint64_t first, const uint32_t *rest, size_t some) {
      for (int k = 0; k <= kMaxK; ++k)
        if (wanted >> k & 1) quotients[k] += (first >> k) + (k < 12 ? best.sum_shifted(rest, some, k) : 0);
    });
  }
  const Best gap = best_of(facts.count, quotients, gaps.candidates());
  take(plan, 6 + bytes_of(gap.cost), GAPS, gap.k);
  const Best space = best_of(facts.runs, quotients, spaces.candidates());
  if (7 + bytes_of(space.cost + ones.least()) > plan.bytes) return;
  if (!few_runs) add_runs();
  const Best one = best_of(facts.runs, lengths, tried);
  take(plan, 7 + bytes_of(space.cost + one.cost), RUNS, space.k, one.k);
}

/* Rice codes out of bytes that may be anything. */
class Reader {
public:
  Reader(const uint8_t *data, uint64_t n) : data_(data), bytes_(n), end_(8 * n) {}

  Error rice(int k, uint64_t limit, uint64_t &value) {
    const uint64_t window = peek(at_);
    /* Bit 25 on: no code whose quotient is beyond 24 passes here. */
    const unsigned q = static_cast<unsigned>(__builtin_ctzll(~window | uint64_t{1} << 25));
    if (q < 25 && at_ + q + 1 + k <= end_) {
      value = uint64_t{q} << k | (window >> (q + 1) & ((uint64_t{1} << k) - 1));
      at_ += q + 1 + k;
      return value > limit ? BEYOND : FINE;
    }
    return slow(k, limit, value);
  }

  /* Up to four codes at once, if they lie in one window; returns how many bits they have, or 0. */
  unsigned four(int k, uint64_t (&values)[4]) const {
    uint64_t window = peek(at_);
    const uint64_t low = (uint64_t{1} << k) - 1;
    unsigned all = 0;
    for (uint64_t &value : values) {
      const unsigned q = static_cast<unsigned>(__builtin_ctzll(~window | uint64_t{1} << 25)), length = q + 1 + k;
      value = uint64_t{q} << k | (window >> (q + 1) & low);
      all += length;
      if (q == 25 || all > 56) return 0;
      window >>= length;
    }
    return at_ + all <= end_ ? all : 0;
  }
  void skip(unsigned bits) { at_ += bits; }

  Error finish(uint64_t &used) const {
    used = bytes_of(at_);
    return at_ % 8 && data_[used - 1] >> at_ % 8 ? PADDING : FINE;
  }

private:
  /* At least 57 bits from there on, zeros behind the end. */
  uint64_t peek(uint64_t at) const {
    const uint64_t byte = at / 8;
    uint64_t window = 0;
    if (byte + 8 <= bytes_)
      std::memcpy(&window, data_ + byte, 8);
    else if (byte < bytes_)
      std::memcpy(&window, data_ + byte, bytes_ - byte);
    return window >> at % 8;
  }

  Error slow(int k, uint64_t limit, uint64_t &value) {
    if (at_ >= end_) return TRUNCATED;
    uint64_t stop = at_;
    while (stop < end_) {
      const unsigned ones = static_cast<unsigned>(__builtin_ctzll(~peek(stop) | uint64_t{1} << 56));
      stop += ones;
      if (ones < 56) break;
    }
    if (stop >= end_) return ENDLESS;
    const uint64_t quotient = stop - at_;
    if (stop + 1 + k > end_) return TRUNCATED;
    if (quotient > limit >> k) return BEYOND; /* before a shift could overflow */
    value = quotient << k | (peek(stop + 1) & ((uint64_t{1} << k) - 1));
    at_ = stop + 1 + k;
    return value > limit ? BEYOND : FINE;
  }

  const uint8_t *data_;
  uint64_t bytes_, end_, at_ = 0;
};

void set_run(uint64_t *words, uint64_t at, uint64_t n) {
  const uint64_t first = at / 64, last = (at + n - 1) / 64;
  const uint64_t head = ~uint64_t{0} << at % 64, tail = ~uint64_t{0} >> (63 - (at + n - 1) % 64);
  if (first == last) {
    words[first] |= head & tail;
    return;
  }
  words[first] |= head;
  for (uint64_t w = first + 1; w < last; ++w) words[w] = ~uint64_t{0};
  words[last] |= tail;
}

Error decode_rice(const uint8_t *data, uint64_t n, uint64_t bits, uint64_t *words, uint64_t &count, uint64_t &used) {
  const bool runs = data[0] == RUNS;
  const uint64_t head = runs ? 7 : 6;
  if (n < head) return TRUNCATED;
  uint32_t promised;
  std::memcpy(&promised, data + 2, 4);
  const int k0 = data[1], k1 = runs ? data[6] : 0;
  if (k1 > kMaxK) return PARAMETER;
  if (!promised || promised > bits) return COUNT;
  std::memset(words, 0, words_of(bits) * 8);
  Reader reader(data + head, n - head);
  uint64_t at = 0, value = 0;
  for (count = 0; count < promised;) {
    uint64_t gaps[4];
    if (!runs && promised - count >= 4 && bits - at > 3) {
      const unsigned read = reader.four(k0, gaps);
      if (read && gaps[0] + gaps[1] + gaps[2] + gaps[3] + 3 < bits - at) {
        for (const uint64_t gap : gaps) {
          at += gap;
          words[at / 64] |= uint64_t{1} << at % 64;
          ++at;
        }
        count += 4;
        reader.skip(read);
        continue;
      }
    }
    if (at >= bits) { /* whatever the next code says: but it must be one */
      const Error error = reader.rice(k0, kNever >> 1, value);
      return error == FINE ? BEYOND : error;
    }
    if (const Error error = reader.rice(k0, bits - at - 1, value)) return error;
    at += value;
    if (!runs) {
      words[at / 64] |= uint64_t{1} << at % 64;
      ++at;
      ++count;
      continue;
    }
    if (const Error error = reader.rice(k1, bits - at - 1, value)) return error;
    if (value + 1 > promised - count) return COUNT;
    set_run(words, at, value + 1);
    at += value + 1;
    count += value + 1;
  }
  const Error error = reader.finish(used);
  used += head;
  return error;
}

Error decode_bitmap(const uint8_t *data, uint64_t n, uint64_t bits, uint64_t *words, uint64_t &used) {
  const bool plain = data[0] == PLAIN;
  const uint64_t all = words_of(bits), entries = plain ? bits : all;
  used = 2 + bytes_of(entries);
  if (n < used) return TRUNCATED;
  if (entries % 8 && data[used - 1] >> entries % 8) return PADDING;
  if (plain) {
    if (all) words[all - 1] = 0;
    std::memcpy(words, data + 2, bytes_of(bits));
    return FINE;
  }
  uint64_t filled = 0;
  for (uint64_t b = 2; b < used; ++b) filled += static_cast<uint64_t>(__builtin_popcount(data[b]));
  if ((n - used) / 8 < filled) return TRUNCATED;
  for (uint64_t w = 0; w < all; ++w) {
    words[w] = 0;
    if (!(data[2 + w / 8] >> w % 8 & 1)) continue;
    std::memcpy(words + w, data + used, 8);
    used += 8;
    if (!words[w]) return EMPTY_WORD;
  }
  return bits % 64 && words[all - 1] >> bits % 64 ? BEYOND : FINE;
}

void fill(uint64_t *words, uint64_t bits, uint64_t with) {
  const uint64_t n = words_of(bits);
  for (uint64_t w = 0; w < n; ++w) words[w] = with;
  if (bits % 64) words[n - 1] &= (uint64_t{1} << bits % 64) - 1;
}

} // namespace
} // namespace sw

using namespace sw;

void sw_index_plan_for(const uint64_t *words, uint64_t bits, sw_index_plan *plan) {
  const SparseOps &best = sparse_ops();
  const uint64_t n = words_of(bits);
  const IndexFacts facts = best.facts(words, n);
  *plan = {2 + bytes_of(bits), facts.count, PLAIN, 0, 0};
  if (facts.count == 0) return take(*plan, 2, EMPTY);
  if (facts.count == bits) return take(*plan, 2, FULL);
  take(*plan, 2 + bytes_of(n) + 8 * facts.filled, WORDS);
  if (facts.count <= kMaxCount) plan_rice(best, words, bits, facts, *plan);
}

void sw_index_encode(const uint64_t *words, uint64_t bits, const sw_index_plan *plan, uint8_t *out) {
  const SparseOps &best = sparse_ops();
  const uint64_t n = words_of(bits);
  out[0] = static_cast<uint8_t>(plan->mode);
  out[1] = static_cast<uint8_t>(plan->k0);
  const uint32_t count = static_cast<uint32_t>(plan->count);
  const int k0 = plan->k0, k1 = plan->k1;
  if (plan->mode == GAPS) {
    std::memcpy(out + 2, &count, 4);
    BitSink sink = {out + 6, 0, 0};
    each_distance(best, words, n, false, [&](uint64_t first, const uint32_t *rest, size_t some) {
      sparse::put_rice(sink, first, k0);
      best.write_rice(sink, rest, some, k0);
    });
  } else if (plan->mode == RUNS) {
    std::memcpy(out + 2, &count, 4);
    out[6] = static_cast<uint8_t>(k1);
    BitSink sink = {out + 7, 0, 0};
    each_run(best, words, bits,
             [&](bool ones, uint64_t length) { sparse::put_rice(sink, length - ones, ones ? k1 : k0); });
  } else if (plan->mode == PLAIN) {
    std::memcpy(out + 2, words, bytes_of(bits));
  } else if (plan->mode == WORDS) {
    uint8_t *map = out + 2, *to = map + bytes_of(n);
    std::memset(map, 0, bytes_of(n));
    for (uint64_t w = 0; w < n; ++w) {
      if (!words[w]) continue;
      map[w / 8] = static_cast<uint8_t>(map[w / 8] | 1 << w % 8);
      std::memcpy(to, words + w, 8);
      to += 8;
    }
  }
}

int32_t sw_index_decode(const uint8_t *data, uint64_t n, uint64_t bits, uint64_t *words, uint64_t *count,
                        uint64_t *used) {
  if (n < 2) return TRUNCATED;
  const int mode = data[0], k0 = data[1];
  if (mode > FULL) return MODE;
  if (k0 > (mode == GAPS || mode == RUNS ? kMaxK : 0)) return PARAMETER;
  if (mode == GAPS || mode == RUNS) return decode_rice(data, n, bits, words, *count, *used);
  if (mode == PLAIN || mode == WORDS) {
    if (const Error error = decode_bitmap(data, n, bits, words, *used)) return error;
  } else {
    fill(words, bits, mode == FULL ? ~uint64_t{0} : 0);
    *used = 2;
  }
  *count = sparse_ops().count(words, words_of(bits));
  return FINE;
}
