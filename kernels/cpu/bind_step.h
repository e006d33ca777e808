// A step's batch as Python gives it: lists of ints.
#pragma once
#include "bind_ints.h"
#include "executor.h"

namespace sf {

inline Step make_step(nanobind::handle token_ids, nanobind::handle positions, nanobind::handle row_offsets,
                      nanobind::handle slots, nanobind::handle logits_rows, const std::vector<int>& taps,
                      size_t num_taps) {
  Step s{ints_of(token_ids), ints_of(positions),   ints_of(row_offsets),
         ints_of(slots),     ints_of(logits_rows), {},
         std::vector<uint8_t>(num_taps)};
  for (int t : taps) s.taps.at(size_t(t)) = 1;
  return s;
}

}  // namespace sf
