#include "pool.h"

#include <chrono>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace sf {
namespace {

constexpr int kFieldBits = 20;
constexpr uint64_t kFieldMask = (uint64_t(1) << kFieldBits) - 1;
constexpr uint64_t kSequenceMask = (uint64_t(1) << 24) - 1;
constexpr auto kSpin = std::chrono::microseconds(50);

uint64_t next_of(uint64_t ticket) { return ticket & kFieldMask; }
uint64_t chunks_of(uint64_t ticket) { return (ticket >> kFieldBits) & kFieldMask; }
bool claimable(uint64_t ticket) { return next_of(ticket) < chunks_of(ticket); }

void relax() {
#if defined(__SSE__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

#if defined(__SSE__)
ExactFloatMode::ExactFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
ExactFloatMode::~ExactFloatMode() { _mm_setcsr(saved_); }
#else
ExactFloatMode::ExactFloatMode() : saved_(0) {}
ExactFloatMode::~ExactFloatMode() {}
#endif

ThreadPool::ThreadPool(int threads) {
  for (int w = 1; w < threads; ++w) workers_.emplace_back([this, w] { work(w); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_seq_cst);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  epoch_.notify_all();
  for (auto& t : workers_) t.join();
}

bool ThreadPool::run(Job& job, int stages, const std::atomic<bool>* cancel) {
  std::lock_guard lock(running_);
  ExactFloatMode mode;
  job_ = &job;
  stages_ = stages;
  stage_ = -1;
  cancel_ = cancel;
  cancelled_ = false;
  finished_.store(false, std::memory_order_relaxed);
  wake();  // sleepers get up while this thread runs the first small stages
  advance(0);
  while (!finished()) {
    run_chunks(0);
    wait_for_chunks(&ThreadPool::finished);
  }
  job_ = nullptr;
  return !cancelled_;
}

void ThreadPool::work(int worker) {
  ExactFloatMode mode;
  while (!stopping()) {
    run_chunks(worker);
    wait_for_chunks(&ThreadPool::stopping);
  }
}

// Claims chunks until the open stage has none left; completes the stage if the last chunk to finish was ours.
void ThreadPool::run_chunks(int worker) {
  for (;;) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    if (!claimable(ticket)) return;
    ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (!claimable(ticket)) return;  // overrun by at most one per thread; the field has room
    // The claimed chunk keeps its stage open, so job_ and stage_ are stable here.
    job_->run(stage_, int(next_of(ticket)), worker);
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) advance(worker);
  }
}

// Opens the next stage that has chunks for several threads, running the others on the way.
void ThreadPool::advance(int worker) {
  for (;;) {
    ++stage_;
    if (cancel_ && cancel_->load(std::memory_order_relaxed) && stage_ < stages_) {
      cancelled_ = true;
      stage_ = stages_;
    }
    if (stage_ >= stages_) {
      publish(0);
      return;
    }
    int n = job_->chunks(stage_);
    if (n == 1) job_->run(stage_, 0, worker);
    if (n > 1) {
      publish(uint64_t(n));
      return;
    }
  }
}

void ThreadPool::publish(uint64_t chunks) {
  sequence_ = (sequence_ + 1) & kSequenceMask;
  remaining_.store(int(chunks), std::memory_order_relaxed);
  ticket_.store(sequence_ << (2 * kFieldBits) | chunks << kFieldBits, std::memory_order_release);
  if (chunks == 0) finished_.store(true, std::memory_order_release);
  wake();
}

void ThreadPool::wake() {
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
}

// Spins briefly, then sleeps, until a chunk can be claimed or `done`.
void ThreadPool::wait_for_chunks(bool (ThreadPool::*done)() const) {
  const auto ready = [&] { return claimable(ticket_.load(std::memory_order_acquire)) || (this->*done)(); };
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() - start < kSpin);
  uint32_t epoch = epoch_.load(std::memory_order_seq_cst);
  if (ready()) return;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  epoch_.wait(epoch, std::memory_order_seq_cst);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  // Awake: the caller looks, and if there is nothing yet spins again, for something is about to come.
}

}  // namespace sf
