/* The exported functions on sparse tensors: they walk a shard's blocks in runs that stay in the L1 cache. */
#include <algorithm>

#include "sparse_generic.h"

#include "walk.h"

namespace sw {
namespace {

const SparseOps kPlain = {sparse::scan,      sparse::compact,     sparse::expand,    sparse::accumulate,
                          sparse::divide,    sparse::copy,        sparse::count,     sparse::facts,
                          sparse::positions, sparse::sum_shifted, sparse::write_rice};

constexpr uint64_t kRun = 2048;  /* coordinates */
constexpr uint64_t kPiece = 256; /* of a run, between requests for the next one */
constexpr uint64_t kCacheLine = 64;
constexpr uint64_t kWorthStreaming = uint64_t{1} << 18;

/* Calls work(first coordinate, how many, first word, first coordinate of the next run) for each run of the shard. */
template <class Work>
void each_run(const sw_shard &shard, Work work) {
  uint64_t word = 0;
  for (uint64_t b = 0; b < shard.blocks; ++b) {
    const uint64_t start = static_cast<uint64_t>(shard.starts[b]);
    const uint64_t size = std::min(shard.block, shard.size - start);
    const uint64_t after = static_cast<uint64_t>(shard.starts[std::min(b + 1, shard.blocks - 1)]);
    for (uint64_t at = 0; at < size; at += kRun) {
      const uint64_t n = std::min(kRun, size - at);
      work(start + at, n, word, at + n < size ? start + at + n : after);
      word += (n + 63) / 64;
    }
  }
}

struct Typed { /* an array whose elements are of 2 or 4 bytes */
  explicit Typed(int kind) : bytes(kind == SW_F32 ? 4 : 2) {}
  const void *at(const void *x, uint64_t i) const { return static_cast<const char *>(x) + i * bytes; }
  void *at(void *x, uint64_t i) const { return static_cast<char *>(x) + i * bytes; }
  int bytes;
};

/* Calls work(first coordinate, how many, first word) for each piece of the shard, and asks memory for what comes a run
 * later: the CPU does so by itself only within a page, and not across blocks. */
template <class Work>
void each_piece(const sw_shard &shard, const void *x, const Typed &typed, Work work) {
  each_run(shard, [&](uint64_t at, uint64_t n, uint64_t word, uint64_t next) {
    for (uint64_t i = 0; i < n; i += kPiece) {
      const char *soon = static_cast<const char *>(typed.at(x, next + i));
      for (uint64_t byte = 0; byte < kPiece * typed.bytes; byte += kCacheLine) __builtin_prefetch(soon + byte);
      work(at + i, std::min(kPiece, n - i), word + i / 64);
    }
  });
}

/* Hands floats on to memory in whole cache lines, whatever the runs that they come in. */
class Outlet {
public:
  Outlet(const SparseOps &best, float *out) : best_(best), out_(out) {}

  /* Where the floats for out[at...] go; at most kRun of them. */
  float *room(uint64_t at) {
    if (at != begin_ + held_) {
      flush();
      begin_ = at;
    }
    return lines_ + held_;
  }
  void filled(uint64_t n) {
    held_ += n;
    const uint64_t over = (reinterpret_cast<uintptr_t>(out_ + begin_ + held_) / sizeof(float)) % kLine;
    if (held_ <= kLine) return;
    const uint64_t done = held_ - over;
    best_.stream(out_ + begin_, lines_, done);
    std::memcpy(lines_, lines_ + done, over * sizeof(float));
    begin_ += done;
    held_ = over;
  }
  void flush() {
    std::memcpy(out_ + begin_, lines_, held_ * sizeof(float));
    begin_ += held_;
    held_ = 0;
  }

private:
  static constexpr uint64_t kLine = 16;
  alignas(64) float lines_[kRun + 2 * kLine];
  const SparseOps &best_;
  float *out_;
  uint64_t begin_ = 0, held_ = 0;
};

} // namespace

const SparseOps &sparse_ops() { return like_ops(kPlain, sparse_avx2_ops(), sparse_avx512_ops()); }

} // namespace sw

using namespace sw;

void sw_sparse_scan(const void *x, int32_t kind, const sw_shard *shard, uint64_t *words) {
  const SparseOps &best = sparse_ops();
  const Typed typed(kind);
  each_piece(*shard, x, typed,
             [&](uint64_t at, uint64_t n, uint64_t word) { best.scan(typed.at(x, at), typed.bytes, n, words + word); });
}

uint64_t sw_sparse_compact(const void *x, int32_t kind, const sw_shard *shard, const uint64_t *words, void *values,
                           uint64_t room) {
  const SparseOps &best = sparse_ops();
  const Typed typed(kind);
  uint64_t count = 0;
  each_run(*shard, [&](uint64_t at, uint64_t n, uint64_t word, uint64_t) {
    const uint64_t here = std::min(count, room);
    count += best.compact(typed.at(x, at), typed.bytes, n, words + word, typed.at(values, here), room - here);
  });
  return count;
}

uint64_t sw_sparse_gather(const void *x, int32_t kind, const sw_shard *shard, uint64_t *words, void *values,
                          uint64_t room) {
  const SparseOps &best = sparse_ops();
  const Typed typed(kind);
  uint64_t count = 0;
  each_piece(*shard, x, typed, [&](uint64_t at, uint64_t n, uint64_t word) {
    const uint64_t here = std::min(count, room);
    best.scan(typed.at(x, at), typed.bytes, n, words + word);
    count += best.compact(typed.at(x, at), typed.bytes, n, words + word, typed.at(values, here), room - here);
  });
  return count;
}

void sw_sparse_expand(const uint64_t *words, const float *values, uint64_t have, const sw_shard *shard, float divisor,
                      int32_t clean, float *out) {
  const PlainFloats plain;
  const SparseOps &best = sparse_ops();
  alignas(64) float divided[kRun + 64] = {};
  Outlet outlet(best, out);
  const bool stream = shard->blocks * shard->block >= kWorthStreaming;
  uint64_t used = 0;
  each_run(*shard, [&](uint64_t at, uint64_t n, uint64_t word, uint64_t) {
    const float *from = values + used;
    uint64_t some = have - used;
    const uint64_t count = clean || divisor != 1 ? best.count(words + word, (n + 63) / 64) : n;
    if (clean && !count) return;
    if (divisor != 1) {
      best.divide(from, std::min(some, count), divisor, divided);
      from = divided;
      some = kRun + 64; /* whole vectors may be read */
    }
    used += best.expand(words + word, n, from, some, stream ? outlet.room(at) : out + at);
    if (stream) outlet.filled(n);
  });
  outlet.flush();
#ifdef SW_X86
  _mm_sfence(); /* what bypassed the caches comes before what follows */
#endif
}

void sw_sparse_accumulate(float *acc, uint64_t n, const uint64_t *words, const void *values, int32_t kind,
                          uint64_t have) {
  const PlainFloats plain;
  sparse_ops().accumulate(acc, n, words, values, kind, have);
}

uint64_t sw_count_bits(const uint64_t *words, uint64_t n) { return sparse_ops().count(words, n); }

void sw_sparse_accumulate_at(float *acc, const int64_t *at, const void *values, int32_t kind, uint64_t n) {
  const PlainFloats plain;
  for (uint64_t i = 0; i < n; ++i) sparse::add_one(acc + at[i], sparse::value_of(values, kind, i));
}

void sw_set_bits(uint64_t *words, const int64_t *at, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) words[at[i] / 64] |= uint64_t{1} << at[i] % 64;
}
