// Kernels of the formats with super-blocks of 256 inputs.
#include "linear_tile.h"

namespace sf::SF_ISA {

SF_DEFINE_QUANTISED_KERNELS(Q2_K)
SF_DEFINE_QUANTISED_KERNELS(Q3_K)
SF_DEFINE_QUANTISED_KERNELS(Q4_K)
SF_DEFINE_QUANTISED_KERNELS(Q5_K)
SF_DEFINE_QUANTISED_KERNELS(Q6_K)

}  // namespace sf::SF_ISA
