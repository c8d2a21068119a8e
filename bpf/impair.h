/* What impair.bpf.c does to packets, shared with user space. */
#ifndef SUMWIRE_IMPAIR_H
#define SUMWIRE_IMPAIR_H

#include <stdint.h>

/* Probabilities are multiples of 2^-32. */
struct sw_impairment {
  uint32_t loss;
  uint32_t duplicate;
  uint32_t reorder;
  uint32_t reserved;
  uint64_t lost;
  uint64_t doubled;
  uint64_t reordered;
};

#endif
