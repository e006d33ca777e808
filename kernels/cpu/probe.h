// Measures and checks the thread pool alone: stages of chunks that spin for a given time and count themselves.
#pragma once
#include <vector>

#include "pool.h"

namespace sf {

struct ProbeResult {
  double seconds;
  std::vector<int> runs;       // chunk executions, by stage
  int out_of_order;            // chunks that ran before all chunks of an earlier stage were complete
  std::vector<int> by_worker;  // chunk executions, by thread
  bool completed;              // false: cancelled
};
// Cancels itself after `cancel_after` chunks, if that is not negative.
ProbeResult probe(ThreadPool& pool, const std::vector<int>& chunks, double chunk_microseconds, int cancel_after);

}  // namespace sf
