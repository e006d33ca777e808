#include "probe.h"

#include <chrono>
#include <memory>

namespace sf {
namespace {

using Clock = std::chrono::steady_clock;

class ProbeJob : public Job {
 public:
  ProbeJob(const std::vector<int>& chunks, int threads, double microseconds, int cancel_after)
      : chunks_(chunks),
        spin_(std::chrono::nanoseconds(int64_t(microseconds * 1e3))),
        cancel_after_(cancel_after),
        runs(new std::atomic<int>[chunks.size()]()),
        done(new std::atomic<int>[chunks.size()]()),
        by_worker(new std::atomic<int>[size_t(threads)]()) {}

  int chunks(int stage) override { return chunks_[size_t(stage)]; }

  void run(int stage, int, int worker) noexcept override {
    for (int s = 0; s < stage; ++s)
      if (done[size_t(s)].load() != chunks_[size_t(s)]) ++out_of_order;
    ++runs[size_t(stage)];
    ++by_worker[size_t(worker)];
    if (++total == cancel_after_) cancel.store(true);
    for (const auto until = Clock::now() + spin_; Clock::now() < until;) {
    }
    ++done[size_t(stage)];
  }

 private:
  const std::vector<int>& chunks_;
  const std::chrono::nanoseconds spin_;
  const int cancel_after_;

 public:
  std::unique_ptr<std::atomic<int>[]> runs, done, by_worker;
  std::atomic<int> out_of_order{0}, total{0};
  std::atomic<bool> cancel{false};
};

}  // namespace

ProbeResult probe(ThreadPool& pool, const std::vector<int>& chunks, double chunk_microseconds, int cancel_after) {
  ProbeJob job(chunks, pool.threads(), chunk_microseconds, cancel_after);
  ProbeResult result{};
  const auto start = Clock::now();
  result.completed = pool.run(job, int(chunks.size()), &job.cancel);
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (size_t s = 0; s < chunks.size(); ++s) result.runs.push_back(job.runs[s]);
  for (int w = 0; w < pool.threads(); ++w) result.by_worker.push_back(job.by_worker[size_t(w)]);
  result.out_of_order = job.out_of_order;
  return result;
}

}  // namespace sf
