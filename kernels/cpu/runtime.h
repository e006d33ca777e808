// What all executors of a backend share: the instruction set's kernels, the threads, and packed weights.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "linear.h"
#include "memory.h"
#include "pool.h"
#include "recurrent.h"
#include "rowops.h"
#include "sampler_kernels.h"

namespace sf {

// Kernels of one instruction set.
struct Kernels {
  const LinearKernels* linear;
  const RowKernels* rows;
  const AttendKernels* attend;
  const SamplerKernels* sampler;
  const RecurrentKernels* recurrent;
};
Kernels find_kernels(const std::string& isa);  // throws std::invalid_argument where this machine cannot run it

// A number that no rows had before (ActivationRows::version).
uint64_t next_rows_version();

// Floats from the start of a page: vectors of them then lie in one cache line each.
class PageFloats {
 public:
  void reserve(size_t floats) {  // what was there may be gone
    if (floats * sizeof(float) > memory_.bytes()) memory_ = MappedMemory(floats * sizeof(float));
  }
  float* data() const { return memory_.as<float>(); }

 private:
  MappedMemory memory_;
};

// Memory that stages share, because one runs at a time. Sized when a stage is made or its chunks are counted.
struct Workspace {
  std::vector<PageFloats> scratch;  // by worker, for one chunk
  PageFloats records;               // partial results of attention's split tasks
  void reserve_scratch(size_t floats) {
    for (auto& s : scratch) s.reserve(floats);
  }
};

// Seconds that steps and draws have spent in native code, and then waited for the GIL to go back to Python.
struct NativeTime {
  double running = 0, waiting = 0;
};

class Runtime : public std::enable_shared_from_this<Runtime> {
 public:
  Runtime(const std::string& isa, int threads) : kernels(find_kernels(isa)), pool(threads) {
    workspace.scratch.resize(size_t(threads));
  }
  const Kernels kernels;
  ThreadPool pool;  // runs one job at a time: executors of one runtime belong to one thread
  Workspace workspace;
  NativeTime time;  // written with the GIL held
};

// A weight packed for the kernels: one matrix, or one for each expert.
struct Matrices : std::enable_shared_from_this<Matrices> {
  Matrices() = default;
  Matrices(const Matrices&) = delete;
  std::vector<std::unique_ptr<PackedMatrix>> parts;
  const PackedMatrix& only() const { return *parts.front(); }
};
std::shared_ptr<Matrices> pack(Runtime& runtime, Format format, int64_t parts, int64_t out, int64_t in,
                               const uint8_t* data);

// A norm's or bias' weights, widened to float32 and padded to whole lanes.
struct Vector : std::enable_shared_from_this<Vector> {
  explicit Vector(size_t n) : values((n + 15) / 16 * 16) {}
  float* data() { return values.data(); }
  std::vector<float> values;
};
std::shared_ptr<Vector> widen(const Runtime& runtime, Format format, int64_t n, const uint8_t* data);

}  // namespace sf
