// Which instruction sets this machine can run.
#include <stdexcept>

#include "linear.h"

#ifdef SF_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sf {

#ifdef SF_AMX
namespace {

// Tile registers make every thread's saved state 8 KiB larger, so Linux wants to be asked for them, once per process.
bool amx_permitted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;  // of leaf 7's edx
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTile) == 0 || (d & kInt8) == 0) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace
#endif

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
#ifdef SF_X86
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512vnni");
#ifdef SF_AMX
  static const bool permitted = amx_permitted();
  if (avx512 && permitted) names.emplace_back("amx");
#endif
  if (avx512) names.emplace_back("avx512");
  if (avx2) names.emplace_back("avx2");
#endif
  names.emplace_back("portable");
  return names;
}

const LinearKernels& linear_kernels(const std::string& name) {
  for (const std::string& known : instruction_sets()) {
    if (known != name) continue;
#ifdef SF_AMX
    if (name == "amx") return amx::linear_kernels();
#endif
#ifdef SF_X86
    if (name == "avx512") return avx512::linear_kernels();
    if (name == "avx2") return avx2::linear_kernels();
#endif
    return portable::linear_kernels();
  }
  throw std::invalid_argument("this machine cannot run the instruction set \"" + name + "\"");
}

}  // namespace sf
