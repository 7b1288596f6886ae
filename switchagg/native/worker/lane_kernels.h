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

// Of magnitudes, as bits, of what was scanned: the smallest is not of zeros, and all ones if there is no other. `negative_zero`:
// a block holds nothing but zeros, and one of them is negative.
template <typename T>
struct Extremes {
  T largest = 0, smallest = static_cast<T>(~T{0});
  bool negative_zero = false;
};

struct LaneKernels {
  // Scan `blocks` consecutive blocks of `block` elements. Set bit i of `bits` (first bit `at`) for every block with a
  // non-zero element, and widen *found. scan32 leaves out the smallest.
  void (*scan32)(const uint32_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at, Extremes<uint32_t>* found);
  void (*scan32_smallest)(const uint32_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at, Extremes<uint32_t>* found);
  void (*scan64)(const uint64_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at, Extremes<uint64_t>* found);
  void (*scan16)(const uint16_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at, Extremes<uint16_t>* found);

  // As dequantize_f32_be, up to a sum whose magnitude is under `least`, or some elements before it; returns how many were written.
  size_t (*dequantize_large)(const uint32_t* sums, size_t n, uint32_t least, ScaleF s, float* x, bool nontemporal);
  // Of at most 1,024 sums, big-endian words, or planes of three limbs of `places` bits, those whose magnitude is under `least`, of
  // three limbs without the lowest: set the bits of small sums, and of zeros among them, and return one for each word of bits.
  uint32_t (*small_sums32)(const uint32_t* sums, size_t n, uint32_t least, uint32_t* small, uint32_t* zero);
  uint32_t (*small_sums64)(const uint32_t* sums, size_t stride, size_t n, int places, int64_t least, uint32_t* small, uint32_t* zero);
  // Of 32 elements, a bit for each whose magnitude is not under `least`; sets a bit for each that is not zero.
  uint32_t (*large32)(const float* x, float least, uint32_t* nonzero);

  // The same for integers and bytes, a block being `block` words; there is no sign to leave out.
  void (*scan_words)(const uint32_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at);
  uint64_t (*count_bits)(const uint32_t* bits, size_t words);  // that are set

  // 32-bit lanes: rint(x * f1 * f2); the _be forms write and read big-endian words directly.
  void (*quantize_f32)(const float* x, size_t n, ScaleF s, int32_t* q);
  void (*quantize_f32_be)(const float* x, size_t n, ScaleF s, uint32_t* words);
  void (*quantize_f64)(const double* x, size_t n, ScaleD s, int32_t* q);
  void (*quantize_f64_limbs)(const double* x, size_t n, ScaleD s, int64_t* q);

  // 16- and 8-bit lanes: rint(x * f1 * f2 * m) plus 16 bits of a counter-based hash of (key, index), shifted right by 16.
  void (*dither_f32)(const float* x, size_t n, ScaleF s, uint32_t key, uint32_t index, int32_t* q);
  void (*dither_f64)(const double* x, size_t n, ScaleD s, uint32_t key, uint32_t index, int32_t* q);

  // q * m * f1 * f2. `nontemporal`: written past the cache; other threads may read it after flush().
  void (*dequantize_f32)(const int32_t* q, size_t n, ScaleF s, float* x);
  void (*dequantize_f32_be)(const uint32_t* words, size_t n, ScaleF s, float* x, bool nontemporal);
  void (*dequantize_f64)(const int32_t* q, size_t n, ScaleD s, double* x);
  void (*dequantize_f64_limbs)(const int64_t* q, size_t n, ScaleD s, double* x);

  // Of `count` arrays: to = also = quantize_f32 of each, added, and dequantized. `nontemporal`: of `also`. One of both may be an x.
  void (*sum_f32)(const float* const* x, size_t count, size_t n, ScaleF up, ScaleF down, float* to, float* also, bool nontemporal);
  void (*copy_nontemporal)(const float* from, size_t n, float* x);  // other threads may read it after flush()

  // Error feedback: sum = x + memory, in place if sum is one of them; left = x - left.
  void (*add_f32)(const float* x, const float* memory, size_t n, float* sum);
  void (*subtract_f32)(const float* x, size_t n, float* left);

  // Lanes of 32 bits to big-endian words and back.
  void (*pack32)(const int32_t* q, size_t words, uint32_t* out);
  void (*unpack32)(const uint32_t* in, size_t words, int32_t* q);
  // One narrow lane of n words, which are sums of lanes times 2^shift until pack32 makes big-endian words of them:
  // sums += lane, either dither_f32's of x or given; and back from big-endian words.
  void (*dither_lane)(const float* x, size_t n, ScaleF s, uint32_t key, uint32_t index, int shift, uint32_t* sums);
  void (*add_lane)(const int32_t* q, size_t n, int shift, uint32_t* sums);
  void (*dequantize_lane16)(const uint32_t* words, size_t n, int shift, ScaleF s, float* x, bool nontemporal);
  void (*dequantize_lane8)(const uint32_t* words, size_t n, int shift, ScaleF s, float* x, bool nontemporal);
  void (*unpack_lane16)(const uint32_t* words, size_t n, int shift, int32_t* q);
  void (*unpack_lane8)(const uint32_t* words, size_t n, int shift, int32_t* q);
  // All lanes of n big-endian words at once. The elements of a lane are neighbours, `apart` from those of the lane before. `scales`: a
  // factor for each lane, whose f2 and m are 1. What is `fetched` bytes behind the elements is prefetched; 0: what comes next.
  void (*dither_words16)(const float* x, size_t apart, size_t n, const float* scales, uint32_t key, uint32_t index, size_t fetched,
                         uint32_t* words);
  void (*dither_words8)(const float* x, size_t apart, size_t n, const float* scales, uint32_t key, uint32_t index, size_t fetched,
                        uint32_t* words);
  void (*dequantize_words16)(const uint32_t* words, size_t n, const float* scales, float* x, size_t apart);
  void (*dequantize_words8)(const uint32_t* words, size_t n, const float* scales, float* x, size_t apart);
  // Makes nontemporal stores visible to other threads.
  void (*flush)();
  // Three limbs of 22, 22 and 20 bits, each limb a plane of n words.
  void (*pack_limbs)(const int64_t* q, size_t n, uint32_t* out);
  void (*unpack_limbs)(const uint32_t* in, size_t n, int64_t* q);

  // Sums in limbs (docs/protocol.md, section 5): limb j of sign and magnitude of each x / unit, as big-endian words; `shift` is
  // the exponent field of an element whose mantissa is the limb as it is, `mask` has the bits of a limb.
  void (*exact_limb_f32)(const float* x, size_t n, int shift, uint32_t mask, uint32_t* words);
  void (*exact_limb_f64)(const double* x, size_t n, int shift, uint32_t mask, uint32_t* words);
  void (*cut_off_f32)(const float* x, size_t n, ScaleF up, ScaleF down, float* left);  // left = x - rint(x * up) * down
  // Sums of two and of three limbs, rounded once. Of two: of at most 53 bits, or 45 if they are divided; or of more if, scaled,
  // they are multiples of the smallest subnormal, as those of three have to be.
  void (*exact_pair_f32)(const uint32_t* low, const uint32_t* high, size_t n, int places, int bits, double divisor, double scale,
                         float* x, bool nontemporal);
  void (*exact_triple_f64)(const uint32_t* low, const uint32_t* middle, const uint32_t* high, size_t n, int places, ScaleD s,
                           double* x);
  void (*odd_f32_be)(const uint32_t* words, size_t n, ScaleF s, float* x);  // rounded to odd, then times f1 and f2, exactly

  void (*widen_f16)(const uint16_t* x, size_t n, float* out);
  void (*narrow_f16)(const float* x, size_t n, uint16_t* out);
  void (*widen_bf16)(const uint16_t* x, size_t n, float* out);
  void (*narrow_bf16)(const float* x, size_t n, uint16_t* out);

  // The sum modulo 2^64 of big-endian words, as integers with a sign, times their weights, of which there is one more.
  uint64_t (*weighted_sum_be)(const uint32_t* words, const int32_t* weights, size_t n);
  // quantize_f32_be and dequantize_f32_be, which return that sum of the words too.
  uint64_t (*quantize_weighted)(const float* x, size_t n, ScaleF s, uint32_t* words, const int32_t* weights);
  uint64_t (*dequantize_weighted)(const uint32_t* words, size_t n, ScaleF s, float* x, bool nontemporal, const int32_t* weights);
  // Big-endian words plus one pad less another, modulo 2^32; a pad may be null. `to` may be `words`.
  void (*pad_be)(const uint32_t* words, const uint32_t* plus, const uint32_t* minus, size_t n, uint32_t* to);
};

extern const LaneKernels lane_kernels_base, lane_kernels_v3, lane_kernels_v4;
const LaneKernels& choose_lane_kernels();  // those of the best instruction set that this processor has

}  // namespace switchagg
