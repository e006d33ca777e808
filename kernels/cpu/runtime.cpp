#include "runtime.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

namespace sf {
namespace {

// Packs all parts, in ranges of tiles, on the pool.
class PackJob : public Job {
 public:
  PackJob(Matrices& m, const uint8_t* data) : m_(m), data_(data) {
    per_part_ = int((m.only().tiles() + kTiles - 1) / kTiles);
    part_bytes_ = size_t(m.only().out) * row_bytes(m.only().format, m.only().in);
  }
  int chunks(int) override { return int(m_.parts.size()) * per_part_; }
  void run(int, int chunk, int) noexcept override {
    PackedMatrix& part = *m_.parts[size_t(chunk / per_part_)];
    const int64_t begin = int64_t(chunk % per_part_) * kTiles;
    pack_tiles(part, data_ + size_t(chunk / per_part_) * part_bytes_, begin, std::min(part.tiles(), begin + kTiles));
  }

 private:
  static constexpr int64_t kTiles = 16;
  Matrices& m_;
  const uint8_t* data_;
  int per_part_;
  size_t part_bytes_;
};

}  // namespace

Kernels find_kernels(const std::string& isa) {
  const LinearKernels& linear = linear_kernels(isa);
#ifdef SF_X86
  if (isa == "amx" || isa == "avx512")
    return {&linear, &avx512::row_kernels(), &avx512::attend_kernels(), &avx512::sampler_kernels(),
            &avx512::recurrent_kernels()};
  if (isa == "avx2")
    return {&linear, &avx2::row_kernels(), &avx2::attend_kernels(), &avx2::sampler_kernels(),
            &avx2::recurrent_kernels()};
#endif
  return {&linear, &portable::row_kernels(), &portable::attend_kernels(), &portable::sampler_kernels(),
          &portable::recurrent_kernels()};
}

uint64_t next_rows_version() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

std::shared_ptr<Matrices> pack(Runtime& runtime, Format format, int64_t parts, int64_t out, int64_t in,
                               const uint8_t* data) {
  auto m = std::make_shared<Matrices>();
  for (int64_t p = 0; p < parts; ++p) m->parts.push_back(allocate_packed(format, out, in));
  PackJob job(*m, data);
  runtime.pool.run(job, 1);
  return m;
}

std::shared_ptr<Vector> widen(const Runtime& runtime, Format format, int64_t n, const uint8_t* data) {
  auto v = std::make_shared<Vector>(size_t(n));
  switch (format) {
    case Format::F32:
      std::memcpy(v->data(), data, size_t(n) * 4);
      break;
    case Format::F16:
      runtime.kernels.rows->f16_to_f32(reinterpret_cast<const uint16_t*>(data), n, v->data());
      break;
    case Format::BF16:
      for (int64_t i = 0; i < n; ++i) {
        uint16_t h;
        std::memcpy(&h, data + 2 * i, 2);
        const uint32_t u = uint32_t(h) << 16;
        std::memcpy(v->data() + i, &u, 4);
      }
      break;
    default:
      throw std::invalid_argument("a vector must be F32, F16 or BF16");
  }
  return v;
}

}  // namespace sf
