// Worker threads that run a job's stages one after the other. A stage is a number of independent chunks which threads
// claim one at a time; it is complete when its chunks are, whoever ran them. So a worker that the OS has taken off its
// core delays nobody unless it holds a chunk, and a job with all workers asleep is merely run by its caller.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace sf {

class Job {
 public:
  virtual ~Job() = default;
  // Chunks of `stage`. Called once per run, by one thread, after every earlier stage is complete. 0 skips the stage;
  // the only chunk of a stage of one is run at once by the thread that asked, without waking or waiting for anybody.
  virtual int chunks(int stage) = 0;
  // Runs one chunk on thread `worker` (0 is the caller). Must not throw.
  virtual void run(int stage, int chunk, int worker) noexcept = 0;
};

// Rounds to nearest, keeps subnormals: the floating point mode that exact rows need. Restores the caller's on exit.
class ExactFloatMode {
 public:
  ExactFloatMode();
  ~ExactFloatMode();
  ExactFloatMode(const ExactFloatMode&) = delete;
  ExactFloatMode& operator=(const ExactFloatMode&) = delete;

 private:
  unsigned saved_;
};

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller counts as one
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return int(workers_.size()) + 1; }

  // Runs all stages of a job; a second caller waits for the first. Ends early, between two stages, once `cancel` is
  // set: then false.
  bool run(Job& job, int stages, const std::atomic<bool>* cancel = nullptr);

 private:
  void work(int worker);
  void run_chunks(int worker);
  void advance(int worker);
  void publish(uint64_t chunks);
  void wake();
  void wait_for_chunks(bool (ThreadPool::*done)() const);
  bool stopping() const { return stop_.load(std::memory_order_acquire); }
  bool finished() const { return finished_.load(std::memory_order_acquire); }

  // [sequence:24][chunks:20][next:20]: one word, so that a claim and the stage it belongs to cannot disagree.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int> remaining_{0};   // chunks of the open stage not yet complete
  alignas(64) std::atomic<uint32_t> epoch_{0};  // bumped whenever a sleeper may have to look again
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false}, finished_{true};

  // Written by the thread that completes a stage, before it publishes the next.
  Job* job_ = nullptr;
  int stage_ = 0, stages_ = 0;
  bool cancelled_ = false;
  const std::atomic<bool>* cancel_ = nullptr;
  uint64_t sequence_ = 0;

  std::mutex running_;
  std::vector<std::thread> workers_;
};

}  // namespace sf
