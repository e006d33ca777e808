// Operations on single rows, declared for the kernel table (linear.cpp).
#pragma once
#include "linear.h"

namespace sf::SF_ISA {

void quantise_row(const float* x, int64_t in, int8_t* q, float* d, int32_t* sums);
void expand_row(const PackedMatrix& w, int64_t row, float scale, float* out);

}  // namespace sf::SF_ISA
