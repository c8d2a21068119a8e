/* How the exported functions walk a tensor: its blocks, and floating point that does not depend on the caller. */
#pragma once
#include "blocks.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define SW_X86 1
#endif

namespace sw {
namespace {

struct Block {
  uint64_t start;
  int log_size;
  uint64_t size() const { return uint64_t{1} << log_size; }
};

/* Whole blocks, then the remainder in descending powers of two: nothing is padded. */
class Blocks {
public:
  Blocks(uint64_t size, int log_block) : log_block_(log_block), whole_(size >> log_block) {
    uint64_t start = whole_ << log_block;
    const uint64_t rest = size - start;
    for (int k = log_block - 1; k >= 0; --k)
      if (rest >> k & 1) {
        tail_[tails_++] = {start, k};
        start += uint64_t{1} << k;
      }
  }
  uint64_t count() const { return whole_ + tails_; }
  uint64_t whole() const { return whole_; }
  Block operator[](uint64_t i) const { return i < whole_ ? Block{i << log_block_, log_block_} : tail_[i - whole_]; }

private:
  int log_block_;
  uint64_t whole_;
  int tails_ = 0;
  Block tail_[SW_MAX_LOG_BLOCK];
};

/* Callers may have set flush-to-zero (torch.set_flush_denormal); results must not depend on it. */
class PlainFloats {
public:
#if defined(SW_X86)
  PlainFloats() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~PlainFloats() { _mm_setcsr(saved_); }

private:
  unsigned saved_;
#elif defined(__aarch64__)
  PlainFloats() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
  }
  ~PlainFloats() { __asm__ volatile("msr fpcr, %0" ::"r"(saved_)); }

private:
  uint64_t saved_;
#else
  PlainFloats() {}
#endif
};

} // namespace
} // namespace sw
