/* The operations of scalar.h, by the compiler, for AVX-512. */
#include "scalar_generic.h"

namespace sw {
#if defined(__AVX512F__)
const ScalarOps *scalar_avx512_ops() { return &kScalar; }
#else
const ScalarOps *scalar_avx512_ops() { return nullptr; }
#endif
} // namespace sw
