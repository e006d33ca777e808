// What the machine can do at most, measured with the threads and the instruction set that steps run with: bytes read per
// second, and products per second of bytes and of floats. Benchmarks hold steps against these.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "pool.h"

namespace sf {

constexpr int kMachineWords = 1024;  // activation words (4 bytes each) that the probes cycle through

struct MachineKernels {
  uint64_t (*read)(const uint8_t* data, size_t bytes);  // a multiple of 256; returns a checksum
  // Multiply and accumulate in registers; return how many products were summed. `sink` keeps the result alive.
  int64_t (*dot)(int64_t rounds, const int8_t* words, int32_t* sink);
  int64_t (*fma)(int64_t rounds, const float* words, float* sink);
};
namespace portable { const MachineKernels& machine_kernels(); }
#ifdef SF_X86
namespace avx2 { const MachineKernels& machine_kernels(); }
namespace avx512 { const MachineKernels& machine_kernels(); }
#endif
#ifdef SF_AMX
namespace amx { const MachineKernels& machine_kernels(); }
#endif

struct MachineRates {
  double bytes;          // read, per second
  double byte_products;  // 8-bit code times 8-bit activation, summed in 32 bits, per second
  double float_products; // fused multiply-adds, per second
};
// The best of repeated runs on the pool, about `seconds` in all. Reads `bytes` of memory of its own, over and over: what
// of them fits into a cache is then read from there, as weights of that size are.
MachineRates measure_machine(ThreadPool& pool, const std::string& isa, size_t bytes, double seconds);

}  // namespace sf
