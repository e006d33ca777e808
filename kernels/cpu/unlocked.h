// Native work of a step, without the GIL and by the clock.
#pragma once
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

#include "runtime.h"

namespace sf {

// Gives the GIL away while it lives, and books what its work took and how long the GIL was awaited after it.
class Unlocked {
 public:
  // Rings the bell first, if there is one (kernels/bell.py): whoever it wakes finds the GIL free.
  explicit Unlocked(NativeTime& time, int bell = -1)
      : time_(time), thread_(PyEval_SaveThread()), begin_(Clock::now()) {
    if (bell >= 0) ring(bell);
  }
  ~Unlocked() {
    const auto end = Clock::now();
    PyEval_RestoreThread(thread_);
    time_.running += seconds(end - begin_);
    time_.waiting += seconds(Clock::now() - end);
  }
  Unlocked(const Unlocked&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  static void ring(int bell) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(bell, &one, sizeof one);  // fails only if it rings already
  }
  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  NativeTime& time_;
  PyThreadState* thread_;
  Clock::time_point begin_;
};

}  // namespace sf
