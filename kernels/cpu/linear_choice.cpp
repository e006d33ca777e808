// Which instruction sets this machine can run.
#include <stdexcept>

#include "linear.h"

namespace sf {

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
#ifdef SF_X86
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512vnni");
  if (avx512) names.emplace_back("avx512");
  if (avx2) names.emplace_back("avx2");
#endif
  names.emplace_back("portable");
  return names;
}

const LinearKernels& linear_kernels(const std::string& name) {
  for (const std::string& known : instruction_sets()) {
    if (known != name) continue;
#ifdef SF_X86
    if (name == "avx512") return avx512::linear_kernels();
    if (name == "avx2") return avx2::linear_kernels();
#endif
    return portable::linear_kernels();
  }
  throw std::invalid_argument("this machine cannot run the instruction set \"" + name + "\"");
}

}  // namespace sf
