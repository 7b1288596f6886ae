// Compiled once for each instruction set (KERNEL_LEVEL); plain loops that the compiler turns into vectors.
#include "worker_lib/native/codec_kernels.h"

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

namespace switchagg {
namespace {

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
inline uint32_t big(uint32_t v) { return __builtin_bswap32(v); }
#else
inline uint32_t big(uint32_t v) { return v; }
#endif

// The tensor streams from memory, and the processor's own prefetching stops at every page: ask this many bytes ahead.
constexpr size_t kAhead = 4096;

inline void set_bit(uint32_t* bits, size_t i) { bits[i >> 5] |= 1u << (i & 31); }

template <typename T, T kSign>
void scan(const T* x, size_t blocks, size_t block, uint32_t* bits, size_t at, T* max_abs, bool* negative_zero) {
  T top = *max_abs;
  bool negative = false;
  for (size_t b = 0; b < blocks; ++b, x += block) {
    T largest = 0, any = 0;
    for (size_t i = 0; i < block; ++i) {
      const T magnitude = static_cast<T>(x[i] & static_cast<T>(~kSign));
      largest = magnitude > largest ? magnitude : largest;
      any = static_cast<T>(any | x[i]);
    }
    if (largest != 0) {
      set_bit(bits, at + b);
      top = largest > top ? largest : top;
    } else {
      negative |= any != 0;
    }
  }
  *max_abs = top;
  *negative_zero |= negative;
}

void scan_words(const uint32_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at) {
  for (size_t b = 0; b < blocks; ++b, x += block) {
    uint32_t any = 0;
    for (size_t i = 0; i < block; ++i) any |= x[i];
    if (any != 0) set_bit(bits, at + b);
  }
}

#if defined(__AVX512F__)
// One vector of maxima runs through the whole chunk; a block asks only whether anything in it was set.
void scan32_v4(const uint32_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at, uint32_t* max_abs,
               bool* negative_zero) {
  if (block % 16 != 0) return scan<uint32_t, 0x80000000u>(x, blocks, block, bits, at, max_abs, negative_zero);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i top = _mm512_setzero_si512();
  bool negative = false;
  for (size_t b = 0; b < blocks; ++b, x += block) {
    __m512i any = _mm512_setzero_si512();
    for (size_t i = 0; i < block; i += 16) {
      __builtin_prefetch(x + i + kAhead / 4);
      const __m512i v = _mm512_loadu_si512(x + i);
      any = _mm512_or_si512(any, v);
      top = _mm512_max_epu32(top, _mm512_and_si512(v, magnitude));
    }
    if (_mm512_test_epi32_mask(any, magnitude)) {
      set_bit(bits, at + b);
    } else if (_mm512_test_epi32_mask(any, any)) {
      negative = true;
    }
  }
  const uint32_t largest = _mm512_reduce_max_epu32(top);
  if (largest > *max_abs) *max_abs = largest;
  *negative_zero |= negative;
}
#endif

// float32 is what nearly all tensors are made of. Written by hand these loops ask for memory well ahead of its use, which
// is worth more than what they compute: they have too many instructions for the processor to look past the end of a page.
#if defined(__AVX512F__)
constexpr bool kByHand = true;

inline __m512i swapped(__m512i v) {
  return _mm512_shuffle_epi8(v, _mm512_set4_epi32(0x0c0d0e0f, 0x08090a0b, 0x04050607, 0x00010203));
}
inline void ahead(const void* at) { _mm_prefetch(static_cast<const char*>(at) + kAhead, _MM_HINT_T0); }
inline void ahead_to_write(void* at) { __builtin_prefetch(static_cast<char*>(at) + kAhead, 1); }

// f(i, n) for each vector: n elements from i.
template <typename F>
inline __attribute__((always_inline)) void each_vector(size_t n, F&& f) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, static_cast<__mmask16>(0xffff));
  if (i < n) f(i, static_cast<__mmask16>((1u << (n - i)) - 1));
}

void quantize_by_hand(const float* x, size_t n, float f1, uint32_t* words) {
  const __m512 factor = _mm512_set1_ps(f1);
  each_vector(n, [=](size_t i, __mmask16 m) {
    ahead(x + i);
    __builtin_prefetch(reinterpret_cast<char*>(words + i) + 2048, 1);
    const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), factor);
    const __m512i q = _mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm512_mask_storeu_epi32(words + i, m, swapped(q));
  });
}

void dequantize_by_hand(const uint32_t* words, size_t n, float f1, float* x) {
  const __m512 factor = _mm512_set1_ps(f1);
  each_vector(n, [=](size_t i, __mmask16 m) {
    ahead(words + i);
    ahead_to_write(x + i);
    const __m512i q = swapped(_mm512_maskz_loadu_epi32(m, words + i));
    _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(_mm512_cvtepi32_ps(q), factor));
  });
}

void dequantize_lanes_by_hand(const int32_t* q, size_t n, float f1, float* x) {
  const __m512 factor = _mm512_set1_ps(f1);
  each_vector(n, [=](size_t i, __mmask16 m) {
    ahead_to_write(x + i);
    const __m512 v = _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(m, q + i));
    _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(v, factor));
  });
}

// Dithering, the arithmetic of random16 and unit below: one lane of each of 16 neighbours.
struct Dither {
  __m512 factor;
  __m512i counters, top;

  Dither(float f1, int32_t most, uint32_t counter, uint32_t step)
      : factor(_mm512_set1_ps(f1)), top(_mm512_set1_epi32(most)) {
    const __m512i each = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    counters = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(counter)),
                                _mm512_mullo_epi32(each, _mm512_set1_epi32(static_cast<int>(step))));
  }
  __m512i operator()(__m512 x, __m512i by) {
    const __m512i hash = _mm512_set1_epi32(static_cast<int>(0x85EBCA6Bu));
    const __m512i mixed = _mm512_mullo_epi32(_mm512_xor_si512(counters, _mm512_srli_epi32(counters, 16)), hash);
    counters = _mm512_add_epi32(counters, by);
    // 0x3f800040 | (mixed >> 16) << 7
    const __m512i mantissa = _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x3f800040), _mm512_srli_epi32(mixed, 9),
                                                       _mm512_set1_epi32(0x007fff80), 0xF8);
    const __m512 u = _mm512_sub_ps(_mm512_castsi512_ps(mantissa), _mm512_set1_ps(1.0f));
    const __m512 v = _mm512_add_ps(_mm512_mul_ps(x, factor), u);
    return _mm512_min_epi32(_mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC), top);
  }
};

void dither_by_hand(const float* x, size_t n, float f1, int32_t top, uint32_t counter, uint32_t step, int32_t* q) {
  const __m512i by = _mm512_set1_epi32(static_cast<int>(16 * step));
  Dither lane(f1, top, counter, step);
  each_vector(n, [&](size_t i, __mmask16 m) {
    ahead(x + i);
    _mm512_mask_storeu_epi32(q + i, m, lane(_mm512_maskz_loadu_ps(m, x + i), by));
  });
}
#else
constexpr bool kByHand = false;
void quantize_by_hand(const float*, size_t, float, uint32_t*) {}
void dequantize_by_hand(const uint32_t*, size_t, float, float*) {}
void dequantize_lanes_by_hand(const int32_t*, size_t, float, float*) {}
void dither_by_hand(const float*, size_t, float, int32_t, uint32_t, uint32_t, int32_t*) {}
#endif

void quantize_f32(const float* __restrict x, size_t n, ScaleF s, int32_t* __restrict q) {
  for (size_t i = 0; i < n; ++i) q[i] = static_cast<int32_t>(__builtin_rintf((x[i] * s.f1) * s.f2));
}

void quantize_f32_be(const float* __restrict x, size_t n, ScaleF s, uint32_t* __restrict words) {
  if (s.f2 == 1.0f) {
    if (kByHand) return quantize_by_hand(x, n, s.f1, words);
    for (size_t i = 0; i < n; ++i)
      words[i] = big(static_cast<uint32_t>(static_cast<int32_t>(__builtin_rintf(x[i] * s.f1))));
    return;
  }
  for (size_t i = 0; i < n; ++i)
    words[i] = big(static_cast<uint32_t>(static_cast<int32_t>(__builtin_rintf((x[i] * s.f1) * s.f2))));
}

// A double can round up to the first value that n workers could not share: stop before it.
void quantize_f64(const double* __restrict x, size_t n, ScaleD s, int32_t* __restrict q) {
  for (size_t i = 0; i < n; ++i) {
    const double v = __builtin_rint((x[i] * s.f1) * s.f2);
    const double below = v < s.m ? v : s.m;
    q[i] = static_cast<int32_t>(below > -s.m ? below : -s.m);
  }
}

void quantize_f64_limbs(const double* __restrict x, size_t n, ScaleD s, int64_t* __restrict q) {
  for (size_t i = 0; i < n; ++i) q[i] = static_cast<int64_t>(__builtin_rint((x[i] * s.f1) * s.f2));
}

// 16 random bits from a counter: `counter` is key + index * kStep, so that a loop only adds.
constexpr uint32_t kStep = 0x9E3779B1u;

inline uint32_t random16(uint32_t counter) {
  counter ^= counter >> 16;
  counter *= 0x85EBCA6Bu;
  return counter >> 16;
}

inline float as_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// (r + 0.5) / 65536, by way of the mantissa of a number between 1 and 2.
inline float unit(uint32_t r) { return as_float(0x3f800040u | r << 7) - 1.0f; }

void dither_f32(const float* __restrict x, size_t n, ScaleF s, int32_t top, uint32_t key, uint32_t index,
                int32_t* __restrict q) {
  uint32_t counter = index * kStep + key;
  if (s.f2 == 1.0f && s.m == 1.0f) {
    if (kByHand) return dither_by_hand(x, n, s.f1, top, counter, kStep, q);
    for (size_t i = 0; i < n; ++i, counter += kStep) {
      const float u = unit(random16(counter));
      const int32_t down = static_cast<int32_t>(__builtin_floorf(x[i] * s.f1 + u));
      q[i] = down < top ? down : top;
    }
    return;
  }
  for (size_t i = 0; i < n; ++i, counter += kStep) {
    const float u = unit(random16(counter));
    const float v = ((x[i] * s.f1) * s.f2) * s.m;
    const int32_t down = static_cast<int32_t>(__builtin_floorf(v + u));
    q[i] = down < top ? down : top;
  }
}

void dither_f64(const double* __restrict x, size_t n, ScaleD s, int32_t top, uint32_t key, uint32_t index,
                int32_t* __restrict q) {
  uint32_t counter = index * kStep + key;
  for (size_t i = 0; i < n; ++i, counter += kStep) {
    const double u = static_cast<double>(unit(random16(counter)));
    const double v = ((x[i] * s.f1) * s.f2) * s.m;
    const int32_t down = static_cast<int32_t>(__builtin_floor(v + u));
    q[i] = down < top ? down : top;
  }
}

void dequantize_f32(const int32_t* __restrict q, size_t n, ScaleF s, float* __restrict x) {
  if (s.f2 == 1.0f && s.m == 1.0f) {
    if (kByHand) return dequantize_lanes_by_hand(q, n, s.f1, x);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(q[i]) * s.f1;
    return;
  }
  for (size_t i = 0; i < n; ++i) x[i] = ((static_cast<float>(q[i]) * s.m) * s.f1) * s.f2;
}

void add_f32(const float* x, const float* memory, size_t n, float* sum) {
  for (size_t i = 0; i < n; ++i) sum[i] = x[i] + memory[i];
}

void leave_f32(const float* __restrict x, size_t n, float* __restrict left) {
  for (size_t i = 0; i < n; ++i) left[i] = x[i] - left[i];
}

void dequantize_f32_be(const uint32_t* __restrict words, size_t n, ScaleF s, float* __restrict x) {
  if (s.f2 == 1.0f && s.m == 1.0f) {
    if (kByHand) return dequantize_by_hand(words, n, s.f1, x);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(static_cast<int32_t>(big(words[i]))) * s.f1;
    return;
  }
  for (size_t i = 0; i < n; ++i)
    x[i] = ((static_cast<float>(static_cast<int32_t>(big(words[i]))) * s.m) * s.f1) * s.f2;
}

void dequantize_f64(const int32_t* __restrict q, size_t n, ScaleD s, double* __restrict x) {
  for (size_t i = 0; i < n; ++i) x[i] = ((static_cast<double>(q[i]) * s.m) * s.f1) * s.f2;
}

void dequantize_f64_limbs(const int64_t* __restrict q, size_t n, ScaleD s, double* __restrict x) {
  for (size_t i = 0; i < n; ++i) x[i] = ((static_cast<double>(q[i]) * s.m) * s.f1) * s.f2;
}

void pack32(const int32_t* __restrict q, size_t words, uint32_t* __restrict out) {
  for (size_t i = 0; i < words; ++i) out[i] = big(static_cast<uint32_t>(q[i]));
}

void pack16(const int32_t* __restrict q, size_t words, uint32_t* __restrict out) {
  const int32_t* high = q + words;
  for (size_t i = 0; i < words; ++i)
    out[i] = big((static_cast<uint32_t>(high[i]) << 16) + static_cast<uint32_t>(q[i]));
}

void pack8(const int32_t* __restrict q, size_t words, uint32_t* __restrict out) {
  const int32_t *q1 = q + words, *q2 = q1 + words, *q3 = q2 + words;
  for (size_t i = 0; i < words; ++i)
    out[i] = big((static_cast<uint32_t>(q3[i]) << 24) + (static_cast<uint32_t>(q2[i]) << 16) +
                 (static_cast<uint32_t>(q1[i]) << 8) + static_cast<uint32_t>(q[i]));
}

void peel32(const uint32_t* __restrict in, size_t words, int32_t* __restrict q) {
  for (size_t i = 0; i < words; ++i) q[i] = static_cast<int32_t>(big(in[i]));
}

// A negative lane has borrowed from the lane above it; taking it away gives the borrow back.
void peel16(const uint32_t* __restrict in, size_t words, int32_t* __restrict q) {
  int32_t* high = q + words;
  for (size_t i = 0; i < words; ++i) {
    const uint32_t w = big(in[i]);
    const int32_t low = static_cast<int32_t>(w << 16) >> 16;
    q[i] = low;
    high[i] = static_cast<int32_t>(w - static_cast<uint32_t>(low)) >> 16;
  }
}

void peel8(const uint32_t* __restrict in, size_t words, int32_t* __restrict q) {
  int32_t *q1 = q + words, *q2 = q1 + words, *q3 = q2 + words;
  for (size_t i = 0; i < words; ++i) {
    uint32_t w = big(in[i]);
    const int32_t a = static_cast<int32_t>(w << 24) >> 24;
    w -= static_cast<uint32_t>(a);
    const int32_t b = static_cast<int32_t>(w << 16) >> 24;
    w -= static_cast<uint32_t>(b) << 8;
    const int32_t c = static_cast<int32_t>(w << 8) >> 24;
    w -= static_cast<uint32_t>(c) << 16;
    q[i] = a;
    q1[i] = b;
    q2[i] = c;
    q3[i] = static_cast<int32_t>(w) >> 24;
  }
}

constexpr uint64_t kLimb = (1u << 22) - 1;

void pack_limbs(const int64_t* __restrict q, size_t n, uint32_t* __restrict out) {
  for (size_t i = 0; i < n; ++i) {
    const uint64_t v = static_cast<uint64_t>(q[i]);
    out[i] = big(static_cast<uint32_t>(v & kLimb));
    out[i + n] = big(static_cast<uint32_t>((v >> 22) & kLimb));
    out[i + 2 * n] = big(static_cast<uint32_t>(v >> 44));
  }
}

void peel_limbs(const uint32_t* __restrict in, size_t n, int64_t* __restrict q) {
  for (size_t i = 0; i < n; ++i)
    q[i] = static_cast<int64_t>(static_cast<uint64_t>(big(in[i])) + (static_cast<uint64_t>(big(in[i + n])) << 22) +
                                (static_cast<uint64_t>(big(in[i + 2 * n])) << 44));
}

inline uint32_t as_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float one_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return as_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return as_float(sign | ((magnitude << 13) + 0x38000000u));
  return as_float(sign | as_bits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f));
}

inline uint16_t to_f16(float x) {
  const uint32_t bits = as_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds past the largest finite value
  if (magnitude < 0x38800000u) {  // subnormal: let the float adder round at 2^-24
    const float rounded = as_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (as_bits(rounded) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

void widen_f16(const uint16_t* __restrict x, size_t n, float* __restrict out) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
  for (; i < n; ++i) out[i] = one_f16(x[i]);
}

void narrow_f16(const float* __restrict x, size_t n, uint16_t* __restrict out) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
#endif
  for (; i < n; ++i) out[i] = to_f16(x[i]);
}

void widen_bf16(const uint16_t* __restrict x, size_t n, float* __restrict out) {
  for (size_t i = 0; i < n; ++i) out[i] = as_float(static_cast<uint32_t>(x[i]) << 16);
}

void narrow_bf16(const float* __restrict x, size_t n, uint16_t* __restrict out) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = as_bits(x[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    out[i] = static_cast<uint16_t>(nan ? 0x7fc0u : rounded);
  }
}

}  // namespace

extern const CodecKernels JOIN(codec_kernels_, KERNEL_LEVEL);
const CodecKernels JOIN(codec_kernels_, KERNEL_LEVEL) = {
    TEXT(KERNEL_LEVEL),
#if defined(__AVX512F__)
    scan32_v4,
#else
    scan<uint32_t, 0x80000000u>,
#endif
    scan<uint64_t, 0x8000000000000000u>,
    scan<uint16_t, 0x8000u>,
    scan_words,
    quantize_f32,
    quantize_f32_be,
    quantize_f64,
    quantize_f64_limbs,
    dither_f32,
    dither_f64,
    dequantize_f32,
    dequantize_f32_be,
    dequantize_f64,
    dequantize_f64_limbs,
    add_f32,
    leave_f32,
    pack32,
    pack16,
    pack8,
    peel32,
    peel16,
    peel8,
    pack_limbs,
    peel_limbs,
    widen_f16,
    narrow_f16,
    widen_bf16,
    narrow_bf16,
};

}  // namespace switchagg
