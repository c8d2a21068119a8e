/* How a body is merged into a slot's words: what bpf/merge.h does, for a process. */
#pragma once
#include <cstring>

#include "../bpf/frame.h"

namespace sumwire::packets {

inline uint64_t word_at(const uint8_t *from) {
  uint64_t word;
  std::memcpy(&word, from, 8);
  return word;
}

/* For each word of the result: `combine(old, new)`, or the new one where the slot is empty. */
template <typename Combine>
void merge_words(uint64_t *sum, const uint8_t *body, uint32_t words, bool empty, Combine combine) {
  if (empty) {
    std::memcpy(sum, body, size_t{8} * words);
    return;
  }
  for (uint32_t i = 0; i < words; i++) sum[i] = combine(sum[i], word_at(body + 8 * i));
}

inline uint64_t larger_halves(uint64_t a, uint64_t b) {
  uint64_t low = uint32_t(a) > uint32_t(b) ? uint32_t(a) : uint32_t(b);
  uint64_t high = a >> 32 > b >> 32 ? a >> 32 : b >> 32;
  return high << 32 | low;
}

/* Lanes never carry into each other: only tables are accepted that leave room for all payloads. */
template <uint32_t bytes>
void look_up(uint64_t *sum, const uint8_t *body, uint32_t words, bool empty, const sw_table &table) {
  for (uint32_t i = 0; i < words; i++, body += bytes) {
    uint64_t given = 0;
    for (uint32_t k = 0; k < bytes; k++) given |= table.spread[body[k]] << table.shift * k;
    sum[i] = (empty ? 0 : sum[i]) + given;
  }
}

/* The same for bytes that make several words each. */
inline void look_up_wide(uint64_t *sum, const uint8_t *body, uint32_t words, bool empty, const sw_table &table) {
  for (uint32_t i = 0; i < words; i++)
    sum[i] = (empty ? 0 : sum[i]) + table.spread[body[i / table.words] * table.words + i % table.words];
}

/* The sum of lanes whose top bits are `top`: each modulo its width, without a carry into its neighbor. */
template <uint64_t top>
uint64_t add_lanes(uint64_t a, uint64_t b) {
  return ((a & ~top) + (b & ~top)) ^ ((a ^ b) & top);
}

inline void merge(sw_slot &slot, uint8_t op, const sw_table *table, const uint8_t *body, bool empty) {
  const uint32_t words = slot.result / 8;
  uint64_t *sum = slot.sum;
  switch (op) {
  case SW_LOOKUP:
    if (table->words > 1) return look_up_wide(sum, body, words, empty, *table);
    switch (table->bytes) {
    case 1: return look_up<1>(sum, body, words, empty, *table);
    case 2: return look_up<2>(sum, body, words, empty, *table);
    case 3: return look_up<3>(sum, body, words, empty, *table);
    case 4: return look_up<4>(sum, body, words, empty, *table);
    case 5: return look_up<5>(sum, body, words, empty, *table);
    case 6: return look_up<6>(sum, body, words, empty, *table);
    case 7: return look_up<7>(sum, body, words, empty, *table);
    default: return look_up<8>(sum, body, words, empty, *table);
    }
  case SW_ADD8: return merge_words(sum, body, words, empty, add_lanes<0x8080808080808080>);
  case SW_ADD16: return merge_words(sum, body, words, empty, add_lanes<0x8000800080008000>);
  case SW_ADD32: return merge_words(sum, body, words, empty, add_lanes<0x8000000080000000>);
  case SW_ADD64: return merge_words(sum, body, words, empty, [](uint64_t a, uint64_t b) { return a + b; });
  case SW_MAX32: return merge_words(sum, body, words, empty, larger_halves);
  case SW_MAX64: return merge_words(sum, body, words, empty, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  default: return merge_words(sum, body, words, empty, [](uint64_t a, uint64_t b) { return a | b; });
  }
}

} // namespace sumwire::packets
