/* The block operations as the compiler makes them for the baseline of this architecture. */
#include "lattice_generic.h"

namespace sw {

const Ops kPortable = {"portable",      draw_signs,      draw_patterns, generic::sum_squares, generic::to_float,
                       generic::encode, generic::decode, generic::add,  generic::pack,        generic::unpack};

} // namespace sw
