/* The operations of levels.h, by the compiler, for AVX2. */
#include "levels_generic.h"

namespace sw {
#if defined(__AVX2__)
const LevelsOps *levels_avx2_ops() { return &kLevels; }
#else
const LevelsOps *levels_avx2_ops() { return nullptr; }
#endif
} // namespace sw
