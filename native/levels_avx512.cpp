/* The operations of levels.h, by the compiler, for AVX-512. */
#include "levels_generic.h"

namespace sw {
#if defined(__AVX512F__)
const LevelsOps *levels_avx512_ops() { return &kLevels; }
#else
const LevelsOps *levels_avx512_ops() { return nullptr; }
#endif
} // namespace sw
