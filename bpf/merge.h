/* Second stage: a body is merged into a slot's words, 8 bytes at a time. Called with the slot's lock held, so that
 * nothing here may call a helper. `keep` is 0 for the first body of a slot, whose old words are then ignored; all ones
 * otherwise. */
#ifndef SUMWIRE_MERGE_H
#define SUMWIRE_MERGE_H

#include "loop.h"
#include "parse.h"

enum { WORDS = SW_GRAIN / 8, MAX_WORDS = SW_BODY_9000 / 8 };

/* Of a body, where words lie at odd places. Said to be aligned, or clang would take them apart into bytes: the verifier
 * allows it where the machine does. */
typedef __u64 __attribute__((may_alias)) word;

/* For each of `words` words: `value` is what the next `step` bytes of the body, `from`, give; `combine` is the word's
 * new value. */
#define FOR_EACH_WORD(step, value, combine)                                                                            \
  for (__u32 i = zero; i < words && i <= MAX_WORDS - WORDS && can_loop; i += WORDS) {                                  \
    const __u8 *from = body + i * step;                                                                                \
    uint64_t *to = sum + i;                                                                                            \
    if (from + step * WORDS > end) break;                                                                              \
    _Pragma("clang loop unroll(full)") for (__u32 k = 0; k < WORDS; k++, from += step) {                               \
      __u64 new = (value);                                                                                             \
      to[k] = (combine);                                                                                               \
    }                                                                                                                  \
  }

/* The same for bytes that make several words each. */
#define FOR_EACH_BYTE(words_per_byte)                                                                                  \
  for (__u32 i = zero; i < words && i <= MAX_WORDS - WORDS && can_loop; i += WORDS) {                                  \
    const __u8 *from = body + i / words_per_byte;                                                                      \
    uint64_t *to = sum + i;                                                                                            \
    if (from + WORDS / words_per_byte > end) break;                                                                    \
    _Pragma("clang loop unroll(full)") for (__u32 k = 0; k < WORDS; k++) to[k] =                                       \
        (to[k] & keep) + spread[from[k / words_per_byte] * words_per_byte + k % words_per_byte];                       \
  }

/* What the word was before. */
#define OLD (to[k] & keep)

/* What byte k of a word's bytes gives, in its place. */
#define GIVEN(k) spread[from[k]] << shift * (k)

/* What a byte gives, if that has 16 bits. The sum of pointer and scalar is spelled out, since clang would copy the
 * pointer first. */
static __always_inline __u64 short_given(const uint16_t *spread, __u64 byte) {
  byte *= sizeof(*spread);
  asm("%0 += %1" : "+r"(byte) : "r"(spread));
  return *(const uint16_t *)byte;
}

#define SHORT(k) short_given(spread, from[k]) << 16 * (k)
#define FOUR_SHORT SHORT(0) | SHORT(1) | SHORT(2) | SHORT(3)

/* Four bytes make a word: 4-bit indices in lanes of a byte, which most packets have, or others of that ratio. Hence the
 * shortest way: shifts are known, the table has 8 cache lines, and the first body does not read what was there. */
static __always_inline void look_up_short(uint64_t *sum, const __u8 *body, const __u8 *end, __u32 zero, __u32 words,
                                          __u64 keep, const uint16_t *spread) {
  if (keep) {
    FOR_EACH_WORD(4, FOUR_SHORT, to[k] + new)
  } else {
    FOR_EACH_WORD(4, FOUR_SHORT, new)
  }
}

/* Lanes never carry into each other: user space accepts only tables that leave room for all payloads. */
static __always_inline void look_up(uint64_t *sum, const __u8 *body, const __u8 *end, __u32 zero, __u32 words,
                                    __u64 keep, const struct sw_table *table) {
  const uint64_t *spread = table->spread;
  __u32 shift = table->shift;
  if (table->words == 2) {
    FOR_EACH_BYTE(2)
  } else if (table->words == 4) {
    FOR_EACH_BYTE(4)
  } else if (table->bytes == 4 && shift == 16) {
    look_up_short(sum, body, end, zero, words, keep, table->short_spread);
  } else if (table->bytes == 1) {
    FOR_EACH_WORD(1, GIVEN(0), OLD + new)
  } else if (table->bytes == 2) {
    FOR_EACH_WORD(2, GIVEN(0) | GIVEN(1), OLD + new)
  } else if (table->bytes == 3) {
    FOR_EACH_WORD(3, GIVEN(0) | GIVEN(1) | GIVEN(2), OLD + new)
  } else if (table->bytes == 4) {
    FOR_EACH_WORD(4, GIVEN(0) | GIVEN(1) | GIVEN(2) | GIVEN(3), OLD + new)
  } else if (table->bytes == 5) {
    FOR_EACH_WORD(5, GIVEN(0) | GIVEN(1) | GIVEN(2) | GIVEN(3) | GIVEN(4), OLD + new)
  } else if (table->bytes == 6) {
    FOR_EACH_WORD(6, GIVEN(0) | GIVEN(1) | GIVEN(2) | GIVEN(3) | GIVEN(4) | GIVEN(5), OLD + new)
  } else if (table->bytes == 7) {
    FOR_EACH_WORD(7, GIVEN(0) | GIVEN(1) | GIVEN(2) | GIVEN(3) | GIVEN(4) | GIVEN(5) | GIVEN(6), OLD + new)
  } else {
    FOR_EACH_WORD(8, GIVEN(0) | GIVEN(1) | GIVEN(2) | GIVEN(3) | GIVEN(4) | GIVEN(5) | GIVEN(6) | GIVEN(7), OLD + new)
  }
}

static __always_inline __u64 larger_halves(__u64 a, __u64 b) {
  __u64 low = (__u32)a > (__u32)b ? (__u32)a : (__u32)b;
  __u64 high = a >> 32 > b >> 32 ? a >> 32 : b >> 32;
  return high << 32 | low;
}

/* The sum of lanes whose top bits are `top`: each modulo its width, without a carry into its neighbor. */
static __always_inline __u64 add_lanes(__u64 a, __u64 b, __u64 top) {
  return ((a & ~top) + (b & ~top)) ^ ((a ^ b) & top);
}

static __always_inline void merge(struct sw_slot *slot, const struct request *r, const __u8 *body, const __u8 *end,
                                  __u64 keep) {
  uint64_t *sum = slot->sum;
  __u32 zero = r->job->zero;
  __u32 words = r->result / 8;
  if (r->op == SW_LOOKUP) {
    if (r->table) look_up(sum, body, end, zero, words, keep, r->table);
  } else if (r->op == SW_MAX32) {
    FOR_EACH_WORD(8, *(const word *)from, larger_halves(OLD, new))
  } else if (r->op == SW_MAX64) {
    FOR_EACH_WORD(8, *(const word *)from, OLD > new ? OLD : new)
  } else if (r->op == SW_OR) {
    FOR_EACH_WORD(8, *(const word *)from, OLD | new)
  } else {
    __u64 top = r->op == SW_ADD8    ? 0x8080808080808080
                : r->op == SW_ADD16 ? 0x8000800080008000
                : r->op == SW_ADD32 ? 0x8000000080000000
                                    : 0x8000000000000000;
    FOR_EACH_WORD(8, *(const word *)from, add_lanes(OLD, new, top))
  }
}

#endif
