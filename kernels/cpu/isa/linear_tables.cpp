// Kernels of the formats whose codes index a table of values.
#include "linear_tile.h"

namespace sf::SF_ISA {

SF_DEFINE_QUANTISED_KERNELS(IQ4_NL)
SF_DEFINE_QUANTISED_KERNELS(IQ4_XS)
SF_DEFINE_QUANTISED_KERNELS(MXFP4)

}  // namespace sf::SF_ISA
