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
constexpr size_t kWidth = 16;
using Ints = __m512i;
using Floats = __m512;

inline Ints load(const uint32_t* at) { return _mm512_loadu_si512(at); }
inline Floats load(const float* at) { return _mm512_loadu_ps(at); }
inline void store(uint32_t* at, Ints v) { _mm512_storeu_si512(at, v); }
inline Ints all(uint32_t v) { return _mm512_set1_epi32(static_cast<int>(v)); }
inline Floats all(float v) { return _mm512_set1_ps(v); }
inline Ints count_up() { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }
inline Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
inline Ints both(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints one_of(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints multiply(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
inline Ints larger(Ints a, Ints b) { return _mm512_max_epu32(a, b); }
inline Ints smaller_signed(Ints a, Ints b) { return _mm512_min_epi32(a, b); }
template <int kPlaces>
inline Ints right(Ints v) { return _mm512_srli_epi32(v, kPlaces); }
inline Ints left(Ints v, __m128i places) { return _mm512_sll_epi32(v, places); }
inline bool any_of(Ints v, Ints mask) { return _mm512_test_epi32_mask(v, mask) != 0; }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats as_floats(Ints v) { return _mm512_castsi512_ps(v); }
inline Ints floor_of(Floats v) { return _mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
#else
constexpr size_t kWidth = 8;
using Ints = __m256i;
using Floats = __m256;

inline Ints load(const uint32_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
inline Floats load(const float* at) { return _mm256_loadu_ps(at); }
inline void store(uint32_t* at, Ints v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v); }
inline Ints all(uint32_t v) { return _mm256_set1_epi32(static_cast<int>(v)); }
inline Floats all(float v) { return _mm256_set1_ps(v); }
inline Ints count_up() { return _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0); }
inline Ints either(Ints a, Ints b) { return _mm256_or_si256(a, b); }
inline Ints both(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints one_of(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
inline Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints multiply(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
inline Ints larger(Ints a, Ints b) { return _mm256_max_epu32(a, b); }
inline Ints smaller_signed(Ints a, Ints b) { return _mm256_min_epi32(a, b); }
template <int kPlaces>
inline Ints right(Ints v) { return _mm256_srli_epi32(v, kPlaces); }
inline Ints left(Ints v, __m128i places) { return _mm256_sll_epi32(v, places); }
inline bool any_of(Ints v, Ints mask) { return !_mm256_testz_si256(v, mask); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats as_floats(Ints v) { return _mm256_castsi256_ps(v); }
inline Ints floor_of(Floats v) { return _mm256_cvtps_epi32(_mm256_floor_ps(v)); }
#endif

}  // namespace
}  // namespace switchagg
#endif
