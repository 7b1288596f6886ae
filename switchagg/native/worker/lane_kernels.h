// The loops that touch every element: scan, quantize, dequantize, pack and unpack lanes. One table of functions for each
// instruction set; choose_lane_kernels() picks the best that this processor has. docs/protocol.md defines the arithmetic;
// tests/reference/quantize.py gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchagg {

// Two factors that are powers of two and one that is not; for float folded into f1 (the others 1) wherever that is exact.
// For quantize_f64, m is the largest value instead.
template <typename T>
struct Scale {
  T f1, f2, m;
};
using ScaleF = Scale<float>;
using ScaleD = Scale<double>;

struct LaneKernels {
  // Scan `blocks` consecutive blocks of `block` elements. Sets bit i of `bits` (first bit `at`) for every block with a
  // non-zero element, raises *max_abs to the largest element's bits without its sign, and sets *negative_zero where a
  // block holds nothing but zeros and one of them is negative.
  void (*scan32)(const uint32_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at, uint32_t* max_abs, bool* negative_zero);
  void (*scan64)(const uint64_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at, uint64_t* max_abs, bool* negative_zero);
  void (*scan16)(const uint16_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at, uint16_t* max_abs, bool* negative_zero);

  // The smallest non-zero magnitude of n elements, as bits; all ones if there is none.
  uint32_t (*smallest32)(const uint32_t* x, size_t n);
  uint64_t (*smallest64)(const uint64_t* x, size_t n);
  uint16_t (*smallest16)(const uint16_t* x, size_t n);

  // The same for integers and bytes, a block being `block` words; there is no sign to leave out.
  void (*scan_words)(const uint32_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at);
  uint64_t (*count_bits)(const uint32_t* bits, size_t words);  // that are set

  // 32-bit lanes: rint(x * f1 * f2); the _be forms write and read big-endian words directly.
  void (*quantize_f32)(const float* x, size_t n, ScaleF s, int32_t* q);
  void (*quantize_f32_be)(const float* x, size_t n, ScaleF s, uint32_t* words);
  void (*quantize_f64)(const double* x, size_t n, ScaleD s, int32_t* q);
  void (*quantize_f64_limbs)(const double* x, size_t n, ScaleD s, int64_t* q);

  // 16- and 8-bit lanes: min(top, floor(x * f1 * f2 * m + u)), u from a counter-based hash of (key, index).
  void (*dither_f32)(const float* x, size_t n, ScaleF s, int32_t top, uint32_t key, uint32_t index, int32_t* q);
  void (*dither_f64)(const double* x, size_t n, ScaleD s, int32_t top, uint32_t key, uint32_t index, int32_t* q);

  // q * m * f1 * f2. `nontemporal`: written past the cache; other threads may read it after flush().
  void (*dequantize_f32)(const int32_t* q, size_t n, ScaleF s, float* x);
  void (*dequantize_f32_be)(const uint32_t* words, size_t n, ScaleF s, float* x, bool nontemporal);
  void (*dequantize_f64)(const int32_t* q, size_t n, ScaleD s, double* x);
  void (*dequantize_f64_limbs)(const int64_t* q, size_t n, ScaleD s, double* x);

  // Error feedback: sum = x + memory, in place if sum is one of them; left = x - left.
  void (*add_f32)(const float* x, const float* memory, size_t n, float* sum);
  void (*subtract_f32)(const float* x, size_t n, float* left);

  // Lanes of 32 bits to big-endian words and back.
  void (*pack32)(const int32_t* q, size_t words, uint32_t* out);
  void (*unpack32)(const uint32_t* in, size_t words, int32_t* q);
  // One narrow lane of n words, which are sums of lanes times 2^shift until pack32 makes big-endian words of them:
  // sums += lane, either dither_f32's of x or given; and back from big-endian words.
  void (*dither_lane)(const float* x, size_t n, ScaleF s, int32_t top, uint32_t key, uint32_t index, int shift, uint32_t* sums);
  void (*add_lane)(const int32_t* q, size_t n, int shift, uint32_t* sums);
  void (*dequantize_lane16)(const uint32_t* words, size_t n, int shift, ScaleF s, float* x, bool nontemporal);
  void (*dequantize_lane8)(const uint32_t* words, size_t n, int shift, ScaleF s, float* x, bool nontemporal);
  void (*unpack_lane16)(const uint32_t* words, size_t n, int shift, int32_t* q);
  void (*unpack_lane8)(const uint32_t* words, size_t n, int shift, int32_t* q);
  // Makes nontemporal stores visible to other threads.
  void (*flush)();
  // Three limbs of 22, 22 and 20 bits, each limb a plane of n words.
  void (*pack_limbs)(const int64_t* q, size_t n, uint32_t* out);
  void (*unpack_limbs)(const uint32_t* in, size_t n, int64_t* q);

  // Sums in limbs (docs/protocol.md, section 5): limb j of sign and magnitude of each x / unit, as big-endian words; `shift` is
  // the exponent field of an element whose mantissa is the limb as it is, `mask` has the bits of a limb. And rounded sums of
  // two limbs, times f1 and f2.
  void (*exact_limb_f32)(const float* x, size_t n, int shift, uint32_t mask, uint32_t* words);
  void (*exact_limb_f64)(const double* x, size_t n, int shift, uint32_t mask, uint32_t* words);
  void (*exact_pair_f32)(const uint32_t* low, const uint32_t* high, size_t n, int places, ScaleF s, float* x);

  void (*widen_f16)(const uint16_t* x, size_t n, float* out);
  void (*narrow_f16)(const float* x, size_t n, uint16_t* out);
  void (*widen_bf16)(const uint16_t* x, size_t n, float* out);
  void (*narrow_bf16)(const float* x, size_t n, uint16_t* out);
};

extern const LaneKernels lane_kernels_base, lane_kernels_v3, lane_kernels_v4;
const LaneKernels& choose_lane_kernels();  // those of the best instruction set that this processor has

}  // namespace switchagg
