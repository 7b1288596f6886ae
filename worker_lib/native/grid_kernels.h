// The loops of worker_lib/compress that touch every element: rounding to a grid at random, lanes of any width in words,
// and back. One table of functions for each instruction set, as codec_kernels.h. The arithmetic is that of
// worker_lib/compress/rounding.py and lanes.py, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchagg {

// What a round's random draws come from; element i draws from (key, i).
struct DrawKey {
  uint32_t first, second;
};

struct GridKernels {
  const char* name;
  // q = clip(floor(x / unit + u), -top, top), u uniform in [0, 1); returns how many |x / unit| were over top.
  size_t (*round_f32)(const float* x, size_t n, float unit, float top, DrawKey key, uint32_t index, int32_t* q);
  size_t (*round_f64)(const double* x, size_t n, double unit, double top, DrawKey key, uint32_t index, int32_t* q);
  void (*scale_f32)(const int32_t* q, size_t n, float unit, float* x);
  void (*scale_f64)(const int32_t* q, size_t n, double unit, double* x);
  // 32 / bits neighbours to a word, the first lowest; q holds words * (32 / bits) lanes. bits from 2 to 16.
  void (*pack)(const int32_t* q, size_t words, int bits, uint32_t* out);
  void (*peel)(const uint32_t* in, size_t words, int bits, int32_t* q);
  uint64_t (*square)(const int32_t* q, size_t n);  // sum of squares, of |q| up to 2^15
};

const GridKernels& choose_grid_kernels();

}  // namespace switchagg
