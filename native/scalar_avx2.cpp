/* The operations of scalar.h, by the compiler, for AVX2. */
#include "scalar_generic.h"

namespace sw {
#if defined(__AVX2__)
const ScalarOps *scalar_avx2_ops() { return &kScalar; }
#else
const ScalarOps *scalar_avx2_ops() { return nullptr; }
#endif
} // namespace sw
