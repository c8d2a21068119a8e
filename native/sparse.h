/* Sparse tensors: the exported functions, and the operations on runs that exist per instruction set.
 *
 * src/sumwire/kernels/sparse/reference.py and index_coding.py define what these return. A bitmap is an array
 * of 64-bit words; bit j of word w is coordinate 64 * w + j of the shard, which is the blocks at `starts`
 * laid end to end. block is a multiple of 64; only the tensor's last block may be shorter. */
#pragma once
#include <cstring>

#include "sumwire.h"

struct sw_shard {
  const int64_t *starts; /* first coordinate of each block, ascending */
  uint64_t blocks, block;
  uint64_t size; /* of the whole tensor */
};

struct sw_index_plan {
  uint64_t bytes; /* of the coded index */
  uint64_t count; /* set bits */
  int32_t mode, k0, k1;
};

/* words = which coordinates of x are not zero. kind: SW_F32, SW_F16 or SW_BF16. */
SW_API void sw_sparse_scan(const void *x, int32_t kind, const sw_shard *shard, uint64_t *words);
/* values = x where bits are set, never more than room; returns how many bits are set. */
SW_API uint64_t sw_sparse_compact(const void *x, int32_t kind, const sw_shard *shard, const uint64_t *words,
                                  void *values, uint64_t room);
/* Both of the above in one pass over x. */
SW_API uint64_t sw_sparse_gather(const void *x, int32_t kind, const sw_shard *shard, uint64_t *words, void *values,
                                 uint64_t room);
/* out (whole tensor) = values / divisor where bits are set, else 0; never reads more than `have` values.
 * clean: out is 0 already where no bits are set. */
SW_API void sw_sparse_expand(const uint64_t *words, const float *values, uint64_t have, const sw_shard *shard,
                             float divisor, int32_t clean, float *out);
/* acc[i] += values[...] for each set bit i < n; never reads more than `have` values. */
SW_API void sw_sparse_accumulate(float *acc, uint64_t n, const uint64_t *words, const void *values, int32_t kind,
                                 uint64_t have);
/* acc[at[i]] += values[i], one after the other: positions may repeat. */
SW_API void sw_sparse_accumulate_at(float *acc, const int64_t *at, const void *values, int32_t kind, uint64_t n);
SW_API uint64_t sw_count_bits(const uint64_t *words, uint64_t n);
/* Sets the bits at n positions. */
SW_API void sw_set_bits(uint64_t *words, const int64_t *at, uint64_t n);

/* The shortest coding of a bitmap of `bits` bits, up to 2**36. */
SW_API void sw_index_plan_for(const uint64_t *words, uint64_t bits, sw_index_plan *plan);
/* The coded index; out must have 8 bytes more than plan->bytes. */
SW_API void sw_index_encode(const uint64_t *words, uint64_t bits, const sw_index_plan *plan, uint8_t *out);
/* Both for a bitmap whose set bits are given as an ascending list: time goes with the list, not with `bits`. */
SW_API void sw_index_plan_positions(const int64_t *at, uint64_t count, uint64_t bits, sw_index_plan *plan);
SW_API void sw_index_encode_positions(const int64_t *at, uint64_t count, uint64_t bits, const sw_index_plan *plan,
                                      uint8_t *out);
/* The bitmap of a coded index, whatever the bytes are. Returns 0, or a number of index_coding.ERRORS. */
SW_API int32_t sw_index_decode(const uint8_t *data, uint64_t n, uint64_t bits, uint64_t *words, uint64_t *count,
                               uint64_t *used);
/* How many bits a coded index sets, and its length; checks all that sw_index_decode does, expands nothing. */
SW_API int32_t sw_index_measure(const uint8_t *data, uint64_t n, uint64_t bits, uint64_t *count, uint64_t *used);
/* The positions of its set bits, of which there may be up to `room`: more are an error, before any is written. */
SW_API int32_t sw_index_positions(const uint8_t *data, uint64_t n, uint64_t bits, int64_t *at, uint64_t room,
                                  uint64_t *count, uint64_t *used);

namespace sw {

/* What the choice of a mode needs to know of a bitmap. */
struct IndexFacts {
  uint64_t count;  /* set bits */
  uint64_t runs;   /* of ones */
  uint64_t filled; /* words that are not 0 */
};

/* Where bits are written to, from the least significant one of each byte; fill < 8 of them wait in the buffer. */
struct BitSink {
  uint8_t *out;
  uint64_t buffer;
  unsigned fill;
};

/* One instruction set's operations on a run of coordinates that begins with a word. */
struct SparseOps {
  void (*scan)(const void *x, int bytes, size_t n, uint64_t *words);
  size_t (*compact)(const void *x, int bytes, size_t n, const uint64_t *words, void *values, size_t room);
  size_t (*expand)(const uint64_t *words, size_t n, const float *values, size_t have, float *out);
  size_t (*accumulate)(float *acc, size_t n, const uint64_t *words, const void *values, int kind, size_t have);
  void (*divide)(const float *x, size_t n, float divisor, float *out);
  void (*stream)(float *out, const float *x, size_t n); /* around the caches */
  uint64_t (*count)(const uint64_t *words, size_t n);
  IndexFacts (*facts)(const uint64_t *words, size_t n);
  /* Where bits are set; out needs room for 64 * n + 16. */
  size_t (*positions)(const uint64_t *words, size_t n, uint32_t *out);
  /* Sum of v >> k for values below 2**12, at most 4096 of them. */
  uint64_t (*sum_shifted)(const uint32_t *v, size_t n, int k);
  /* Rice codes of such values; touches up to 8 bytes behind them. */
  void (*write_rice)(BitSink &sink, const uint32_t *v, size_t n, int k);
};

const SparseOps *sparse_avx2_ops(); /* null when not built for this architecture */
const SparseOps *sparse_avx512_ops();
const SparseOps &sparse_ops(); /* the best that this CPU runs */

} // namespace sw
