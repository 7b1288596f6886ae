// Loops of kernels over long arrays: what they prefetch, how they round, and how they write. Only for kernel files, which are compiled
// once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchagg/native/worker/vectors.h"

namespace switchagg {
namespace {

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
inline uint32_t big(uint32_t v) { return __builtin_bswap32(v); }
#else
inline uint32_t big(uint32_t v) { return v; }
#endif

// Bytes to prefetch ahead, measured on Zen 3 (v3) and Sapphire Rapids (v4): hardware prefetching stops at page boundaries.
#if defined(__AVX512F__)
constexpr size_t kAhead = 4096;
#else
constexpr size_t kAhead = 1024;
#endif
// Shorter runs, in elements, are not prefetched, because the memory behind them may not be used.
constexpr size_t kLong = 256;
inline void ahead(const void* at) { __builtin_prefetch(static_cast<const char*>(at) + kAhead); }
inline void ahead_to_write(void* at) { __builtin_prefetch(static_cast<char*>(at) + kAhead, 1); }

inline float nearest(float v) { return __builtin_rintf(v); }
inline double nearest(double v) { return __builtin_rint(v); }

// The same as an integer. With SSE2 alone nearest() is a call of the C library, but conversion to an integer rounds too.
template <typename Q, typename T>
inline Q nearest_as(T v) {
#if defined(__SSE2__) && !defined(__SSE4_1__) && __has_builtin(__builtin_irintf)
  if constexpr (sizeof(T) == 4 && sizeof(Q) == 4) return __builtin_irintf(v);
#endif
  return static_cast<Q>(nearest(v));
}

constexpr size_t kLine = 16;  // float32 in a line of cache

// Calls f(i) for i < n, and in long runs ask(i), which prefetches, for the first of each cache line. Compilers vectorize
// the inner loop, but no loop that contains a prefetch. f must be short.
template <typename A, typename F>
inline __attribute__((always_inline)) void each_line(size_t n, A&& ask, F&& f) {
  size_t i = 0;
  if (n > kLong)
    for (; i + kLine <= n; i += kLine) {
      ask(i);
      for (size_t j = 0; j < kLine; ++j) f(i + j);
    }
  for (; i < n; ++i) f(i);
}

// x[i] = f(i) for i < n. `nontemporal`: whole lines are written past the cache; other threads may read them after flush().
template <typename F>
inline __attribute__((always_inline)) void each_written(float* x, size_t n, [[maybe_unused]] bool nontemporal, F&& f) {
#if defined(__AVX2__)
  if (nontemporal) {
    size_t i = 0;
    for (; i < n && reinterpret_cast<uintptr_t>(x + i) % (4 * kLine); ++i) x[i] = f(i);
    for (; i + kLine <= n; i += kLine) {
      alignas(4 * kLine) float line[kLine];
      for (size_t j = 0; j < kLine; ++j) line[j] = f(i + j);
      for (size_t j = 0; j < kLine; j += kStreamed) stream(x + i + j, line + j);
    }
    for (; i < n; ++i) x[i] = f(i);
    return;
  }
#endif
  each_line(n, [=](size_t i) { ahead_to_write(x + i); }, [&](size_t i) { x[i] = f(i); });
}

}  // namespace
}  // namespace switchagg
