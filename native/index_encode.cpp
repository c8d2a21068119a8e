/* A bitmap, or a list of positions, as bytes: index_coding.py defines the six modes and how one is chosen. */
#include "index_coding.h"

namespace sw {
namespace {

constexpr uint64_t kMaxCount = 0xFFFFFFFFu;
constexpr size_t kGroup = 64; /* words whose positions are found at once; 4096 of them fit 12 bits */

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

/* Where ones are set: in a bitmap. */
struct Bitmap {
  const SparseOps &best;
  const uint64_t *words;
  uint64_t bits;

  IndexFacts facts() const { return best.facts(words, words_of(bits)); }
  /* Position of the highest bit, plus one. */
  uint64_t reach() const {
    uint64_t n = words_of(bits);
    while (n && !words[n - 1]) --n;
    return n ? 64 * n - static_cast<uint64_t>(__builtin_clzll(words[n - 1])) : 0;
  }
  /* quotients[k] += the sum of gap >> k, for each k of the set. */
  void add_gaps(uint32_t wanted, uint64_t (&quotients)[kMaxK + 1]) const {
    each_distance(best, words, words_of(bits), false, [&](uint64_t first, const uint32_t *rest, size_t some) {
      for (int k = 0; k <= kMaxK; ++k)
        if (wanted >> k & 1) quotients[k] += (first >> k) + (k < 12 ? best.sum_shifted(rest, some, k) : 0);
    });
  }
  template <class Work>
  void each_run(Work work) const {
    sw::each_run(best, words, bits, work);
  }
  void write_gaps(BitSink sink, int k) const {
    each_distance(best, words, words_of(bits), false, [&](uint64_t first, const uint32_t *rest, size_t some) {
      sparse::put_rice(sink, first, k);
      best.write_rice(sink, rest, some, k);
    });
  }
  void write_plain(uint8_t *out) const { std::memcpy(out, words, bytes_of(bits)); }
  /* Marks words that are not 0 in the map, and puts them one after the other. */
  void write_words(uint8_t *map, uint8_t *to) const {
    const uint64_t n = words_of(bits);
    for (uint64_t w = 0; w < n; ++w) {
      if (!words[w]) continue;
      map[w / 8] = static_cast<uint8_t>(map[w / 8] | 1 << w % 8);
      std::memcpy(to, words + w, 8);
      to += 8;
    }
  }
};

/* Where ones are set: in an ascending list. All its work is in proportion to the list, not to the bits. */
struct Positions {
  const int64_t *at;
  uint64_t n, bits;

  IndexFacts facts() const {
    IndexFacts all = {n, 0, 0};
    for (uint64_t i = 0; i < n; ++i) {
      all.runs += !i || at[i] != at[i - 1] + 1;
      all.filled += !i || at[i] >> 6 != at[i - 1] >> 6;
    }
    return all;
  }
  uint64_t reach() const { return n ? static_cast<uint64_t>(at[n - 1]) + 1 : 0; }
  uint64_t gap(uint64_t i) const { return static_cast<uint64_t>(i ? at[i] - at[i - 1] - 1 : at[0]); }
  void add_gaps(uint32_t wanted, uint64_t (&quotients)[kMaxK + 1]) const {
    for (uint64_t i = 0; i < n; ++i)
      for (uint32_t set = wanted; set; set &= set - 1) {
        const int k = __builtin_ctz(set);
        quotients[k] += gap(i) >> k;
      }
  }
  template <class Work>
  void each_run(Work work) const {
    for (uint64_t i = 0, end; i < n; i = end) {
      for (end = i + 1; end < n && at[end] == at[end - 1] + 1;) ++end;
      work(false, gap(i));
      work(true, end - i);
    }
  }
  void write_gaps(BitSink sink, int k) const {
    for (uint64_t i = 0; i < n; ++i) sparse::put_rice(sink, gap(i), k);
  }
  void write_plain(uint8_t *out) const {
    std::memset(out, 0, bytes_of(bits));
    for (uint64_t i = 0; i < n; ++i) out[at[i] / 8] = static_cast<uint8_t>(out[at[i] / 8] | 1 << at[i] % 8);
  }
  void write_words(uint8_t *map, uint8_t *to) const {
    for (uint64_t i = 0; i < n; to += 8) {
      const int64_t w = at[i] / 64;
      uint64_t word = 0;
      for (; i < n && at[i] / 64 == w; ++i) word |= uint64_t{1} << at[i] % 64;
      map[w / 8] = static_cast<uint8_t>(map[w / 8] | 1 << w % 8);
      std::memcpy(to, &word, 8);
    }
  }
};

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
template <class Source>
void plan_rice(const Source &source, const IndexFacts &facts, sw_index_plan &plan) {
  const uint64_t zeros = source.reach() - facts.count;
  const Estimate gaps = {facts.count, zeros}, spaces = {facts.runs, zeros},
                 ones = {facts.runs, facts.count - facts.runs};
  const bool gaps_may = 6 + bytes_of(gaps.least()) <= plan.bytes;
  const bool runs_may = 7 + bytes_of(spaces.least() + ones.least()) <= plan.bytes;
  if (!gaps_may && !runs_may) return;
  const uint32_t wanted = gaps.candidates() | spaces.candidates(), tried = ones.candidates();
  uint64_t quotients[kMaxK + 1] = {}, lengths[kMaxK + 1] = {};
  const auto add_runs = [&] {
    source.each_run([&](bool is_ones, uint64_t length) {
      uint64_t *sums = is_ones ? lengths : quotients;
      for (uint32_t set = is_ones ? tried : wanted; set; set &= set - 1) {
        const int k = __builtin_ctz(set);
        sums[k] += (length - is_ones) >> k;
      }
    });
  };
  const bool few_runs = 2 * facts.runs < facts.count;
  if (few_runs)
    add_runs();
  else
    source.add_gaps(wanted, quotients);
  const Best gap = best_of(facts.count, quotients, gaps.candidates());
  take(plan, 6 + bytes_of(gap.cost), GAPS, gap.k);
  const Best space = best_of(facts.runs, quotients, spaces.candidates());
  if (7 + bytes_of(space.cost + ones.least()) > plan.bytes) return;
  if (!few_runs) add_runs();
  const Best one = best_of(facts.runs, lengths, tried);
  take(plan, 7 + bytes_of(space.cost + one.cost), RUNS, space.k, one.k);
}

template <class Source>
void plan_for(const Source &source, sw_index_plan *plan) {
  const IndexFacts facts = source.facts();
  *plan = {2 + bytes_of(source.bits), facts.count, PLAIN, 0, 0};
  if (facts.count == 0) return take(*plan, 2, EMPTY);
  if (facts.count == source.bits) return take(*plan, 2, FULL);
  take(*plan, 2 + bytes_of(words_of(source.bits)) + 8 * facts.filled, WORDS);
  if (facts.count <= kMaxCount) plan_rice(source, facts, *plan);
}

template <class Source>
void encode(const Source &source, const sw_index_plan *plan, uint8_t *out) {
  out[0] = static_cast<uint8_t>(plan->mode);
  out[1] = static_cast<uint8_t>(plan->k0);
  const uint32_t count = static_cast<uint32_t>(plan->count);
  const int k0 = plan->k0, k1 = plan->k1;
  if (plan->mode == GAPS) {
    std::memcpy(out + 2, &count, 4);
    source.write_gaps({out + 6, 0, 0}, k0);
  } else if (plan->mode == RUNS) {
    std::memcpy(out + 2, &count, 4);
    out[6] = static_cast<uint8_t>(k1);
    BitSink sink = {out + 7, 0, 0};
    source.each_run([&](bool ones, uint64_t length) { sparse::put_rice(sink, length - ones, ones ? k1 : k0); });
  } else if (plan->mode == PLAIN) {
    source.write_plain(out + 2);
  } else if (plan->mode == WORDS) {
    const uint64_t map_bytes = bytes_of(words_of(source.bits));
    std::memset(out + 2, 0, map_bytes);
    source.write_words(out + 2, out + 2 + map_bytes);
  }
}

} // namespace
} // namespace sw

using namespace sw;

void sw_index_plan_for(const uint64_t *words, uint64_t bits, sw_index_plan *plan) {
  plan_for(Bitmap{sparse_ops(), words, bits}, plan);
}

void sw_index_encode(const uint64_t *words, uint64_t bits, const sw_index_plan *plan, uint8_t *out) {
  encode(Bitmap{sparse_ops(), words, bits}, plan, out);
}

void sw_index_plan_positions(const int64_t *at, uint64_t count, uint64_t bits, sw_index_plan *plan) {
  plan_for(Positions{at, count, bits}, plan);
}

void sw_index_encode_positions(const int64_t *at, uint64_t count, uint64_t bits, const sw_index_plan *plan,
                               uint8_t *out) {
  encode(Positions{at, count, bits}, plan, out);
}
