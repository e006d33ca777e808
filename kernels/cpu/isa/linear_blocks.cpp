// Kernels of the formats with one scale per 32 inputs.
#include "linear_tile.h"

namespace sf::SF_ISA {

SF_DEFINE_QUANTISED_KERNELS(Q4_0)
SF_DEFINE_QUANTISED_KERNELS(Q4_1)
SF_DEFINE_QUANTISED_KERNELS(Q5_0)
SF_DEFINE_QUANTISED_KERNELS(Q5_1)
SF_DEFINE_QUANTISED_KERNELS(Q8_0)

}  // namespace sf::SF_ISA
