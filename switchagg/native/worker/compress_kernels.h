// The loops of worker_lib/compress that touch every element: random rounding, lanes of any width in words, and modular
// lanes. One table of functions for each instruction set, as in lane_kernels.h. The results are the same to the bit as
// those of tests/reference.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchagg {

struct DrawKey {  // element i of a call draws its random number from (key, i)
  uint32_t first, second;
};

template <typename T>
struct CompressLoops {
  // q = clip(floor(x / unit + u), -top, top), u uniform in [0, 1); returns how many |x / unit| exceed top.
  size_t (*round)(const T* x, size_t n, T unit, T top, DrawKey key, uint32_t index, int32_t* q);
  void (*scale)(const int32_t* q, size_t n, T unit, T* x);
  // Modular quantization, in doubles: the low 32 bits of floor(x / unit + u). Returns how many x were not finite, or not
  // within 2^51 units; these become 0.
  size_t (*low_bits)(const T* x, size_t n, double unit, DrawKey key, uint32_t index, int32_t* low);
  void (*rounded)(const T* x, size_t n, double unit, DrawKey key, uint32_t index, T* out);  // the same floor, times unit
  // sum = (near + off) * unit, and mean = sum / workers; returns the largest |off|.
  int32_t (*sum_near)(const double* near, const int32_t* off, size_t n, double unit, double workers, T* sum, double* mean);
  // out = factor * H (signs * x) of one block of a power of two, at least 2, with zeros behind the n elements of x; element i has
  // the sign of draw (key, index + i). `scratch` has two blocks, and is in the cache.
  void (*rotate)(const T* x, size_t n, size_t block, DrawKey key, uint32_t index, T factor, T* scratch, T* out);
  // x = factor * signs * (H y): the first n elements.
  void (*unrotate)(const T* y, size_t n, size_t block, DrawKey key, uint32_t index, T factor, T* scratch, T* x);
};

struct CompressKernels {
  CompressLoops<float> f32;
  CompressLoops<double> f64;
  // 32 / bits neighbours to a word, the first lowest; q has words * (32 / bits) lanes. bits from 2 to 16.
  void (*pack)(const int32_t* q, size_t words, int bits, uint32_t* out);
  void (*unpack)(const uint32_t* in, size_t words, int bits, int32_t* q);
  uint64_t (*square)(const int32_t* q, size_t n);  // sum of squares, of |q| up to 2^15
  void (*expect)(const double* reference, size_t n, double scale, double* near, int32_t* low);  // near = rint(reference * scale)
  // off = each lane's sum minus `low`, modulo 2^bits, in [-2^(bits-1), 2^(bits-1)).
  void (*unpack_near)(const uint32_t* in, size_t words, int bits, const int32_t* low, int32_t* off);
  uint32_t (*check)(const int32_t* low, const int32_t* off, const uint32_t* factors, size_t n);  // off may be null
};

extern const CompressKernels compress_kernels_base, compress_kernels_v3, compress_kernels_v4;

}  // namespace switchagg
