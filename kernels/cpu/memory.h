// Zeroed memory straight from the OS: pages cost nothing until they are written, and go back as a whole. Large pieces
// ask for huge pages, because address translation costs a reader of scattered blocks more than the reading.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <sys/mman.h>
#include <utility>

namespace sf {

class MappedMemory {
 public:
  MappedMemory() = default;
  explicit MappedMemory(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(p);
#ifdef MADV_HUGEPAGE
    if (bytes >= kHuge) madvise(p, bytes, MADV_HUGEPAGE);  // advice: without it all works, slower
#endif
  }
  MappedMemory(MappedMemory&& o) noexcept { *this = std::move(o); }
  MappedMemory& operator=(MappedMemory&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~MappedMemory() {
    if (data_) munmap(data_, bytes_);
  }

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  static constexpr size_t kHuge = size_t(2) << 20;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace sf
