// A region is mapped once, filled from its start, and unmapped when its last piece is freed: weights live and die with
// their model, so pieces are never reused one by one.
#include "pack_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

namespace sf {
namespace {

constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kRegion = size_t(64) << 20;  // address space only: pages become resident when first written

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Region {
  size_t bytes;
  size_t used = 0;
  size_t pieces = 0;
};

class Regions {
 public:
  uint8_t* allocate(size_t bytes) {
    std::lock_guard lock(mutex_);
    bytes = std::max<size_t>(round_up(bytes, 64), 64);
    if (!open_ || regions_.at(open_).bytes - regions_.at(open_).used < bytes)
      open_ = map(std::max(kRegion, round_up(bytes, kHugePage)));
    Region& region = regions_.at(open_);
    uint8_t* piece = open_ + region.used;
    region.used += bytes;
    ++region.pieces;
    return piece;
  }

  void free(uint8_t* piece) {
    std::lock_guard lock(mutex_);
    auto at = std::prev(regions_.upper_bound(piece));
    if (--at->second.pieces > 0) return;
    if (at->first == open_) open_ = nullptr;
    munmap(at->first, at->second.bytes);
    regions_.erase(at);
  }

 private:
  uint8_t* map(size_t bytes) {
    size_t padded = bytes + kHugePage;
    void* raw = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    auto* start = static_cast<uint8_t*>(raw);
    auto* aligned = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(start), kHugePage));
    if (aligned > start) munmap(start, size_t(aligned - start));
    if (size_t tail = size_t(start + padded - (aligned + bytes))) munmap(aligned + bytes, tail);
#ifdef MADV_HUGEPAGE
    madvise(aligned, bytes, MADV_HUGEPAGE);  // a wish: without huge pages everything works, slower
#endif
    regions_.emplace(aligned, Region{bytes});
    return aligned;
  }

  std::mutex mutex_;
  std::map<uint8_t*, Region> regions_;
  uint8_t* open_ = nullptr;  // the region that new pieces come from
};

Regions& regions() {
  static auto* instance = new Regions;  // outlives every matrix, those freed at exit included
  return *instance;
}

}  // namespace

uint8_t* allocate_weights(size_t bytes) { return regions().allocate(bytes); }
void free_weights(uint8_t* data) noexcept {
  if (data) regions().free(data);
}

}  // namespace sf
