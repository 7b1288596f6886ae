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

  // Modular quantization, in doubles. floor(x / unit + u) to its low 32 bits; returns how many x were not finite or not
  // within 2^51 units, which become 0.
  size_t (*far_f32)(const float* x, size_t n, double unit, DrawKey key, uint32_t index, int32_t* low);
  size_t (*far_f64)(const double* x, size_t n, double unit, DrawKey key, uint32_t index, int32_t* low);
  // The same, times unit; 0 where it is not usable.
  void (*far_values_f32)(const float* x, size_t n, double unit, DrawKey key, uint32_t index, float* out);
  void (*far_values_f64)(const double* x, size_t n, double unit, DrawKey key, uint32_t index, double* out);
  // near = rint(reference * scale), and its low 32 bits.
  void (*expect)(const double* reference, size_t n, double scale, double* near, int32_t* low);
  // How far each lane's sum is from what is expected of it, in [-2^(bits-1), 2^(bits-1)).
  void (*peel_near)(const uint32_t* in, size_t words, int bits, const int32_t* low, int32_t* off);
  // Sums near + off times unit, and those over the number of workers; returns the largest |off|.
  int32_t (*settle_f32)(const double* near, const int32_t* off, size_t n, double unit, double workers, float* sum, double* mean);
  int32_t (*settle_f64)(const double* near, const int32_t* off, size_t n, double unit, double workers, double* sum, double* mean);
  uint32_t (*check)(const int32_t* low, const int32_t* off, const uint32_t* factors, size_t n);  // off may be null
};

const GridKernels& choose_grid_kernels();

}  // namespace switchagg
