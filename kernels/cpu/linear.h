// The border between the executor and the matrix products: packed weights, quantised activation rows, and one call
// that computes a rectangle (rows x output tiles) of a product. Which thread computes which rectangle changes no bit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sf {

enum class Format : int {  // values are GGUF type ids
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13,
  Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23, BF16 = 30, MXFP4 = 39,
};
bool is_quantised(Format f);                    // activations are quantised for these
size_t row_bytes(Format f, int64_t in);         // of the file's layout

constexpr int kTile = 16;                       // output columns interleaved in one packed tile

// A matrix (out x in) packed for the kernels: tiles of 16 output columns; the last tile is padded with zero weights.
struct PackedMatrix {
  Format format;
  int64_t out, in;
  int64_t tiles() const { return (out + kTile - 1) / kTile; }
  size_t tile_bytes;                            // stride between tiles
  uint8_t* data;                                // 64-byte aligned, owned
  ~PackedMatrix();
};
// Packs rows [0, out) from the file's layout. Rejects nothing: the caller has checked sizes. Tiles [begin, end) only,
// so that threads can share the work; `allocate_packed` reserves the memory.
std::unique_ptr<PackedMatrix> allocate_packed(Format f, int64_t out, int64_t in);
void pack_tiles(PackedMatrix& m, const uint8_t* src, int64_t tile_begin, int64_t tile_end);

// Activation rows quantised in blocks of 32 along the input: q = round(x * 127 / amax), d = amax / 127, and the integer
// sums of each 16 for zero-point corrections. Unused (null) for F32/F16/BF16 weights, which read `x`.
struct ActivationRows {
  const float* x;        // [rows][stride]
  int64_t stride;
  const int8_t* q;       // [rows][in]
  const float* d;        // [rows][in / 32]
  const int32_t* sums;   // [rows][in / 16]
  // Kernels arrange rows for their own use. Calls with the same version (not 0) promise the same rows in the same
  // place, so that a thread arranges them once, not once per rectangle. Never use a number again for other content.
  uint64_t version = 0;
};

struct Epilogue {
  const float* bias = nullptr;      // [out]
  const float* residual = nullptr;  // [rows][residual_stride]
  int64_t residual_stride = 0;
};

// One table per instruction set; all give the same bits.
struct LinearKernels {
  // Quantises one row of `in` floats (a multiple of 32).
  void (*quantise_row)(const float* x, int64_t in, int8_t* q, float* d, int32_t* sums);
  // out[r][c] for rows [row_begin, row_end) and columns of tiles [tile_begin, tile_end): weight @ x (+ bias) (+
  // residual). Reads the weights once per 8 rows. `out` is where the rectangle's first row and column go; bias and
  // residual start at row 0 and column 0. A result may take its residual's place.
  void (*matmul)(const PackedMatrix& w, const ActivationRows& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                 int64_t tile_end, const Epilogue& e, float* out, int64_t out_stride);
  // One matrix row expanded to floats exactly as the file's format defines (embedding lookup), times scale.
  void (*expand_row)(const PackedMatrix& w, int64_t row, float scale, float* out);
};
namespace portable { const LinearKernels& linear_kernels(); }
#ifdef SF_X86
namespace avx2 { const LinearKernels& linear_kernels(); }
namespace avx512 { const LinearKernels& linear_kernels(); }
#endif
#ifdef SF_AMX
namespace amx { const LinearKernels& linear_kernels(); }
#endif
// Names of the instruction sets that this machine can run, best first; and the kernels of one of them.
std::vector<std::string> instruction_sets();
const LinearKernels& linear_kernels(const std::string& instruction_set);  // throws std::invalid_argument

}  // namespace sf
