// Memory for packed weights: 64-byte aligned pieces of large mappings that ask for huge pages. Streaming weights
// through 4 KiB pages costs a third of the bandwidth (each page starts with address translation and stops the
// prefetcher).
#pragma once
#include <cstddef>
#include <cstdint>

namespace sf {

uint8_t* allocate_weights(size_t bytes);  // throws std::bad_alloc; untouched memory is zero and not resident
void free_weights(uint8_t* data) noexcept;

}  // namespace sf
