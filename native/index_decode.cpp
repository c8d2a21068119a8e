/* Which bits a coded index sets, out of bytes that may be anything: index_coding.py defines the six modes. */
#include "index_coding.h"

namespace sw {
namespace {

enum Error : int32_t { FINE, TRUNCATED, MODE, PARAMETER, COUNT, BEYOND, PADDING, ENDLESS, EMPTY_WORD, CROWDED };

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

/* Where set bits go: nowhere, if only their number is asked for. */
struct Nowhere {
  void begin(uint64_t) {}
  void one(uint64_t) {}
  void run(uint64_t, uint64_t) {}
};

struct IntoBitmap {
  uint64_t *words;

  void begin(uint64_t bits) { std::memset(words, 0, words_of(bits) * 8); }
  void one(uint64_t at) { words[at / 64] |= uint64_t{1} << at % 64; }
  void run(uint64_t at, uint64_t n) {
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
};

struct IntoPositions {
  int64_t *out;

  void begin(uint64_t) {}
  void one(uint64_t at) { *out++ = static_cast<int64_t>(at); }
  void run(uint64_t at, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) one(at + i);
  }
};

/* A well-formed index never sets more than `room` bits: that is known before the first of them is set. */
template <class Into>
Error decode_rice(const uint8_t *data, uint64_t n, uint64_t bits, uint64_t room, Into into, uint64_t &count,
                  uint64_t &used) {
  const bool runs = data[0] == RUNS;
  const uint64_t head = runs ? 7 : 6;
  if (n < head) return TRUNCATED;
  uint32_t promised;
  std::memcpy(&promised, data + 2, 4);
  const int k0 = data[1], k1 = runs ? data[6] : 0;
  if (k1 > kMaxK) return PARAMETER;
  if (!promised || promised > bits) return COUNT;
  if (promised > room) return CROWDED;
  into.begin(bits);
  Reader reader(data + head, n - head);
  uint64_t at = 0, value = 0;
  for (count = 0; count < promised;) {
    uint64_t gaps[4];
    if (!runs && promised - count >= 4 && bits - at > 3) {
      const unsigned read = reader.four(k0, gaps);
      if (read && gaps[0] + gaps[1] + gaps[2] + gaps[3] + 3 < bits - at) {
        for (const uint64_t gap : gaps) {
          at += gap;
          into.one(at);
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
      into.one(at);
      ++at;
      ++count;
      continue;
    }
    if (const Error error = reader.rice(k1, bits - at - 1, value)) return error;
    if (value + 1 > promised - count) return COUNT;
    into.run(at, value + 1);
    at += value + 1;
    count += value + 1;
  }
  const Error error = reader.finish(used);
  used += head;
  return error;
}

/* Modes 3 and 4: a bitmap, or those of its words that are not 0. */
struct Stored {
  const uint8_t *data;
  uint64_t n, bits;
  uint64_t map = 2 + bytes_of(data[0] == PLAIN ? bits : words_of(bits)); /* its end */
  bool plain = data[0] == PLAIN;

  /* Calls work(number of the word, the word) for each that is stored. */
  template <class Work>
  void each_word(Work work) const {
    if (plain) {
      for (uint64_t w = 0; w < words_of(bits); ++w) {
        uint64_t word = 0;
        std::memcpy(&word, data + 2 + 8 * w, std::min<uint64_t>(8, map - 2 - 8 * w));
        work(w, word);
      }
      return;
    }
    const uint8_t *from = data + map;
    for (uint64_t b = 2; b < map; ++b)
      for (unsigned set = data[b]; set; set &= set - 1, from += 8) {
        uint64_t word;
        std::memcpy(&word, from, 8);
        work(8 * (b - 2) + static_cast<unsigned>(__builtin_ctz(set)), word);
      }
  }

  Error check_map(uint64_t &used) const {
    const uint64_t entries = plain ? bits : words_of(bits);
    if (n < map) return TRUNCATED;
    if (entries % 8 && data[map - 1] >> entries % 8) return PADDING;
    uint64_t filled = 0;
    if (!plain)
      for (uint64_t b = 2; b < map; ++b) filled += static_cast<uint64_t>(__builtin_popcount(data[b]));
    used = map + 8 * filled;
    return (n - map) / 8 < filled ? TRUNCATED : FINE;
  }

  Error check(uint64_t &count, uint64_t &used) const {
    if (const Error error = check_map(used)) return error;
    count = 0;
    bool empty = false, beyond = false;
    each_word([&](uint64_t w, uint64_t word) {
      count += static_cast<uint64_t>(__builtin_popcountll(word));
      empty |= !word;
      beyond |= bits / 64 == w && word >> bits % 64; /* only a word that is not whole has that number */
    });
    return empty && !plain ? EMPTY_WORD : beyond ? BEYOND : FINE;
  }
};

/* The first byte's mode and the second's k are good, and there are two bytes. */
Error check_head(const uint8_t *data, uint64_t n) {
  if (n < 2) return TRUNCATED;
  const int mode = data[0], k0 = data[1];
  if (mode > FULL) return MODE;
  return k0 > (mode == GAPS || mode == RUNS ? kMaxK : 0) ? PARAMETER : FINE;
}

void fill(uint64_t *words, uint64_t bits, uint64_t with) {
  const uint64_t n = words_of(bits);
  for (uint64_t w = 0; w < n; ++w) words[w] = with;
  if (bits % 64) words[n - 1] &= (uint64_t{1} << bits % 64) - 1;
}

} // namespace
} // namespace sw

using namespace sw;

int32_t sw_index_decode(const uint8_t *data, uint64_t n, uint64_t bits, uint64_t *words, uint64_t *count,
                        uint64_t *used) {
  if (const Error error = check_head(data, n)) return error;
  const int mode = data[0];
  if (mode == GAPS || mode == RUNS) return decode_rice(data, n, bits, kNever, IntoBitmap{words}, *count, *used);
  const Stored stored = {data, n, bits};
  if (mode == PLAIN) {
    if (const Error error = stored.check_map(*used)) return error;
    if (bits) words[words_of(bits) - 1] = 0;
    std::memcpy(words, data + 2, bytes_of(bits));
    *count = sparse_ops().count(words, words_of(bits));
    return FINE;
  }
  if (mode == WORDS) {
    if (const Error error = stored.check(*count, *used)) return error;
    fill(words, bits, 0);
    stored.each_word([&](uint64_t w, uint64_t word) { words[w] = word; });
    return FINE;
  }
  fill(words, bits, mode == FULL ? ~uint64_t{0} : 0);
  *used = 2;
  *count = mode == FULL ? bits : 0;
  return FINE;
}

int32_t sw_index_measure(const uint8_t *data, uint64_t n, uint64_t bits, uint64_t *count, uint64_t *used) {
  if (const Error error = check_head(data, n)) return error;
  const int mode = data[0];
  if (mode == GAPS || mode == RUNS) return decode_rice(data, n, bits, kNever, Nowhere{}, *count, *used);
  if (mode == PLAIN || mode == WORDS) return Stored{data, n, bits}.check(*count, *used);
  *used = 2;
  *count = mode == FULL ? bits : 0;
  return FINE;
}

int32_t sw_index_positions(const uint8_t *data, uint64_t n, uint64_t bits, int64_t *at, uint64_t room, uint64_t *count,
                           uint64_t *used) {
  if (const Error error = check_head(data, n)) return error;
  const int mode = data[0];
  IntoPositions into = {at};
  if (mode == GAPS || mode == RUNS) return decode_rice(data, n, bits, room, into, *count, *used);
  if (const int32_t error = sw_index_measure(data, n, bits, count, used)) return error;
  if (*count > room) return CROWDED;
  if (mode == FULL) {
    into.run(0, bits);
  } else if (mode != EMPTY) {
    Stored{data, n, bits}.each_word([&](uint64_t w, uint64_t word) {
      for (; word; word &= word - 1) into.one(64 * w + static_cast<unsigned>(sparse::lowest(word)));
    });
  }
  return FINE;
}
