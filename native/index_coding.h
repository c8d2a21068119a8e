/* What the writer and the reader of a coded index share: index_coding.py defines the six modes. */
#pragma once
#include <algorithm>
#include <limits>

#include "sparse_generic.h"

namespace sw {

enum Mode : int32_t { EMPTY, GAPS, RUNS, PLAIN, WORDS, FULL };

constexpr int kMaxK = 31;
constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

static inline uint64_t words_of(uint64_t bits) { return (bits + 63) / 64; }
static inline uint64_t bytes_of(uint64_t bits) { return (bits + 7) / 8; }

} // namespace sw
