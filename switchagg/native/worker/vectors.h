// Vectors of 32-bit elements, the widest of the compiled instruction set, for loops that compilers do not vectorize well.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace switchagg {
namespace {

// Writes 8 elements past the cache.
constexpr size_t kStreamed = 8;
inline void stream(float* at, const float* from) { _mm256_stream_ps(at, _mm256_loadu_ps(from)); }

#if defined(__AVX512F__)
#define VECTOR(operation) _mm512_##operation
#define INTEGER(operation) _mm512_##operation##_si512
constexpr size_t kWidth = 16;
using Ints = __m512i;
using Floats = __m512;
inline Ints load(const uint32_t* at) { return _mm512_loadu_si512(at); }
inline void store(uint32_t* at, Ints v) { _mm512_storeu_si512(at, v); }
inline Ints count_up() { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }
inline bool any_of(Ints v, Ints mask) { return _mm512_test_epi32_mask(v, mask) != 0; }
inline uint32_t smaller_lanes(Ints a, Ints b) { return _mm512_cmplt_epi32_mask(a, b); }
inline Ints larger_than_zero(Ints v) { return _mm512_maskz_set1_epi32(_mm512_test_epi32_mask(v, v), -1); }
inline Ints swapped(Ints v) {
  const __m128i order = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(order));
}
inline uint32_t largest_of(Ints v) {  // by hand: the header's own reductions make compilers warn
  uint32_t x[kWidth], largest = 0;
  store(x, v);
  for (const uint32_t each : x) largest = each > largest ? each : largest;
  return largest;
}
inline uint32_t smallest_of(Ints v) {
  uint32_t x[kWidth], smallest = ~0u;
  store(x, v);
  for (const uint32_t each : x) smallest = each < smallest ? each : smallest;
  return smallest;
}
#else
#define VECTOR(operation) _mm256_##operation
#define INTEGER(operation) _mm256_##operation##_si256
constexpr size_t kWidth = 8;
using Ints = __m256i;
using Floats = __m256;
inline Ints load(const uint32_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
inline void store(uint32_t* at, Ints v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v); }
inline Ints count_up() { return _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0); }
inline bool any_of(Ints v, Ints mask) { return !_mm256_testz_si256(v, mask); }
inline uint32_t smaller_lanes(Ints a, Ints b) {  // a bit for each element; signed
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a))));
}
inline Ints larger_than_zero(Ints v) { return _mm256_cmpgt_epi32(v, _mm256_setzero_si256()); }  // signed
inline Ints swapped(Ints v) {  // the bytes of each element, in the other order
  const __m128i order = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order));
}
inline uint32_t largest_of(Ints v) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1))));
}
inline uint32_t smallest_of(Ints v) {
  __m128i m = _mm_min_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_min_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_min_epu32(m, _mm_shuffle_epi32(m, 0xb1))));
}
#endif

// Of elements of 64 bits: sums, and products of their lower halves; and their upper halves.
inline Ints add_wide(Ints a, Ints b) { return VECTOR(add_epi64)(a, b); }
inline Ints multiply_lower(Ints a, Ints b) { return VECTOR(mul_epi32)(a, b); }
inline Ints upper(Ints v) { return VECTOR(srli_epi64)(v, 32); }

inline Floats to_floats(Ints v) { return VECTOR(cvtepi32_ps)(v); }
inline Ints nearest_of(Floats v) { return VECTOR(cvtps_epi32)(v); }
inline void store(float* at, Floats v) { VECTOR(storeu_ps)(at, v); }
inline void stream(float* at, Floats v) { VECTOR(stream_ps)(at, v); }  // past the cache
inline Floats load(const float* at) { return VECTOR(loadu_ps)(at); }
inline Ints all(uint32_t v) { return VECTOR(set1_epi32)(static_cast<int>(v)); }
inline Floats all(float v) { return VECTOR(set1_ps)(v); }
inline Ints either(Ints a, Ints b) { return INTEGER(or)(a, b); }
inline Ints both(Ints a, Ints b) { return INTEGER(and)(a, b); }
inline Ints one_of(Ints a, Ints b) { return INTEGER(xor)(a, b); }
inline Ints add(Ints a, Ints b) { return VECTOR(add_epi32)(a, b); }
inline Ints subtract(Ints a, Ints b) { return VECTOR(sub_epi32)(a, b); }
inline Ints multiply(Ints a, Ints b) { return VECTOR(mullo_epi32)(a, b); }
inline Ints larger(Ints a, Ints b) { return VECTOR(max_epu32)(a, b); }
inline Ints magnitude(Ints v) { return VECTOR(abs_epi32)(v); }
inline Ints smaller(Ints a, Ints b) { return VECTOR(min_epu32)(a, b); }
template <int kPlaces>
inline Ints right(Ints v) { return VECTOR(srli_epi32)(v, kPlaces); }
template <int kPlaces>
inline Ints right_signed(Ints v) { return VECTOR(srai_epi32)(v, kPlaces); }
inline Ints left(Ints v, Ints places) { return VECTOR(sllv_epi32)(v, places); }
inline Ints right(Ints v, Ints places) { return VECTOR(srlv_epi32)(v, places); }
inline Ints right(Ints v, __m128i places) { return VECTOR(srl_epi32)(v, places); }
inline Ints left(Ints v, __m128i places) { return VECTOR(sll_epi32)(v, places); }
inline Floats multiply(Floats a, Floats b) { return VECTOR(mul_ps)(a, b); }
#undef VECTOR
#undef INTEGER

}  // namespace
}  // namespace switchagg
#endif
