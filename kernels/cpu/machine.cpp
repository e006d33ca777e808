#include "machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <stdexcept>
#include <vector>

#include "linear.h"
#include "memory.h"
#include "runtime.h"

namespace sf {
namespace {

using Clock = std::chrono::steady_clock;

const MachineKernels& kernels_of(const std::string& isa) {
  const std::vector<std::string> known = instruction_sets();
  if (std::find(known.begin(), known.end(), isa) == known.end()) throw std::invalid_argument("unknown instruction set " + isa);
#ifdef SF_AMX
  if (isa == "amx") return amx::machine_kernels();
#endif
#ifdef SF_X86
  if (isa == "avx512") return avx512::machine_kernels();
  if (isa == "avx2") return avx2::machine_kernels();
#endif
  return portable::machine_kernels();
}

// One chunk per thread; `work(chunk)` returns how much it did.
template <class Work>
class EqualShares : public Job {
 public:
  EqualShares(int threads, Work work) : done_(size_t(threads)), work_(std::move(work)) {}
  int chunks(int) override { return int(done_.size()); }
  void run(int, int chunk, int) noexcept override { done_[size_t(chunk)] = work_(chunk); }
  int64_t done() const {
    int64_t total = 0;
    for (int64_t d : done_) total += d;
    return total;
  }

 private:
  std::vector<int64_t> done_;
  Work work_;
};

// The best rate of runs until `seconds` are over, at least three.
template <class Work>
double best_rate(ThreadPool& pool, double seconds, Work work) {
  EqualShares<Work> job(pool.threads(), std::move(work));
  double best = 0;
  const auto began = Clock::now();
  auto spent = [&](Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); };
  for (int run = 0; run < 3 || spent(began) < seconds; ++run) {
    const auto start = Clock::now();
    pool.run(job, 1);
    best = std::max(best, double(job.done()) / spent(start));
  }
  return best;
}

}  // namespace

MachineRates measure_machine(ThreadPool& pool, const std::string& isa, size_t bytes, double seconds) {
  // Short runs: on a shared machine few long ones have all cores to themselves.
  constexpr size_t kPiece = 256, kPass = size_t(4) << 20;
  constexpr int64_t kRounds = 8'000;
  const MachineKernels& kernels = kernels_of(isa);
  const size_t share = std::max(bytes / size_t(pool.threads()) / kPiece, size_t(1)) * kPiece;
  MappedMemory memory(share * size_t(pool.threads()));
  std::memset(memory.data(), 1, memory.bytes());  // untouched pages are all the same one, which fits into any cache
  std::vector<int8_t> words(size_t(kMachineWords) * 4, 7);
  std::vector<float> floats(kMachineWords, 0x1p-10f);
  struct alignas(64) Sink {
    uint64_t sum;
    int32_t whole;
    float real;
  };
  std::vector<Sink> sinks(size_t(pool.threads()));
  MachineRates rates{};
  std::vector<size_t> next(size_t(pool.threads()));
  rates.bytes = best_rate(pool, seconds / 2, [&](int chunk) {
    size_t& at = next[size_t(chunk)];
    const size_t part = std::min(kPass, share - at);
    sinks[size_t(chunk)].sum += kernels.read(memory.data() + size_t(chunk) * share + at, part);
    at = at + part == share ? 0 : at + part;
    return int64_t(part);
  });
  rates.byte_products = best_rate(pool, seconds / 4, [&](int chunk) { return kernels.dot(kRounds, words.data(), &sinks[size_t(chunk)].whole); });
  rates.float_products = best_rate(pool, seconds / 4, [&](int chunk) { return kernels.fma(kRounds, floats.data(), &sinks[size_t(chunk)].real); });
  uint64_t expected = 0;
  for (const Sink& s : sinks) expected |= s.sum;
  if (expected == 0) throw std::logic_error("nothing was read");
  return rates;
}

void bind_machine(nanobind::module_& m) {
  namespace nb = nanobind;
  using namespace nb::literals;
  nb::class_<MachineRates>(m, "MachineRates")
      .def_ro("bytes", &MachineRates::bytes)
      .def_ro("byte_products", &MachineRates::byte_products)
      .def_ro("float_products", &MachineRates::float_products);
  m.def("measure_machine",
        [](Runtime& runtime, const std::string& isa, size_t size, double seconds) {
          nb::gil_scoped_release release;
          return measure_machine(runtime.pool, isa, size, seconds);
        },
        "runtime"_a, "isa"_a, "size"_a, "seconds"_a);
}

}  // namespace sf
