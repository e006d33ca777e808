// Native work of a step, without the GIL and by the clock.
#pragma once
#include <nanobind/nanobind.h>

#include <chrono>

#include "runtime.h"

namespace sf {

// Gives the GIL away while it lives, and books what its work took and how long the GIL was awaited after it.
class Unlocked {
 public:
  explicit Unlocked(NativeTime& time) : time_(time), thread_(PyEval_SaveThread()), begin_(Clock::now()) {}
  ~Unlocked() {
    const auto end = Clock::now();
    PyEval_RestoreThread(thread_);
    time_.running += seconds(end - begin_);
    time_.waiting += seconds(Clock::now() - end);
  }
  Unlocked(const Unlocked&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  NativeTime& time_;
  PyThreadState* thread_;
  Clock::time_point begin_;
};

}  // namespace sf
