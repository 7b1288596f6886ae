// Kernels of 16- and 8-bit lanes, for lane_kernels.cpp alone. A word is the sum of its lanes, each times 2^shift, with carries and borrows
// between them.
#pragma once

#include "switchagg/native/worker/lane_kernels.h"
#include "switchagg/native/worker/loops.h"
#include "switchagg/native/worker/vectors.h"

namespace switchagg {
namespace {

// 16 random bits from a counter: `counter` is key + index * kStep, so that a loop only adds.
constexpr uint32_t kStep = 0x9E3779B1u, kMix = 0x85EBCA6Bu;

inline uint32_t random16(uint32_t counter) {
  counter ^= counter >> 16;
  counter *= kMix;
  return counter >> 16;
}

// 2^16 times a lane plus its random bits. What is below the lane's unit is cut off, and so rounded at random.
template <typename T>
inline int32_t dithered(T v, uint32_t counter) {
  return static_cast<int32_t>(static_cast<uint32_t>(nearest_as<int32_t>(v)) + random16(counter));  // wraps if a plan was wrong
}

template <typename T>
void dither(const T* __restrict x, size_t n, Scale<T> s, uint32_t key, uint32_t index, int32_t* __restrict q) {
  uint32_t counter = index * kStep + key;
  for (size_t i = 0; i < n; ++i, counter += kStep) q[i] = dithered(((x[i] * s.f1) * s.f2) * s.m, counter) >> 16;
}

void add_lane(const int32_t* __restrict q, size_t n, int shift, uint32_t* __restrict sums) {
  for (size_t i = 0; i < n; ++i) sums[i] += static_cast<uint32_t>(q[i]) << shift;
}

#if defined(__AVX2__)
// dithered() for neighbours, whose counters it moves on.
inline Ints dithered(Floats v, Ints& counters) {
  const Ints mixed = multiply(one_of(counters, right<16>(counters)), all(kMix));
  counters = add(counters, all(static_cast<uint32_t>(kWidth) * kStep));
  return add(nearest_of(v), right<16>(mixed));
}
inline Ints counters_from(uint32_t counter) { return add(all(counter), multiply(count_up(), all(kStep))); }
#endif

void dither_lane(const float* __restrict x, size_t n, ScaleF s, uint32_t key, uint32_t index, int shift,
                 uint32_t* __restrict sums) {
  uint32_t counter = index * kStep + key;
  size_t i = 0;
#if defined(__AVX2__)
  if (s.f2 == 1.0f && s.m == 1.0f) {
    const bool is_long = n > kLong;
    Ints counters = counters_from(counter);
    for (; i + kWidth <= n; i += kWidth) {
      if (is_long && i % kLine == 0) ahead(x + i);
      const Ints lane = right_signed<16>(dithered(multiply(load(x + i), all(s.f1)), counters));
      store(sums + i, add(load(sums + i), left(lane, _mm_cvtsi32_si128(shift))));
    }
    counter += static_cast<uint32_t>(i) * kStep;
  }
#endif
  for (; i < n; ++i, counter += kStep)
    sums[i] += static_cast<uint32_t>(dithered(((x[i] * s.f1) * s.f2) * s.m, counter) >> 16) << shift;
}

#if defined(__AVX2__)
// dithered() ones as lane l of words, and zeros below it.
template <int kBits>
inline __attribute__((always_inline)) Ints in_place(Ints v, size_t l) {
  const int shift = static_cast<int>(l) * kBits;
  if (shift == 0) return right_signed<16>(v);
  return both(shift < 16 ? right_signed<16 - kBits>(v) : left(v, _mm_cvtsi32_si128(shift - 16)), all(~0u << shift));
}

// Calls f(i) for the vectors that n elements have, and ask(i), which prefetches, for the first of each cache line. Returns how many they are.
template <typename A, typename F>
inline __attribute__((always_inline)) size_t each_vector(size_t n, A&& ask, F&& f) {
  size_t i = 0;
  for (; i + kLine <= n; i += kLine) {
    ask(i);
    for (size_t j = 0; j < kLine; j += kWidth) f(i + j);
  }
  for (; i + kWidth <= n; i += kWidth) f(i);
  return i;
}
#endif

// Of whole words, so that the last vector may begin where it has some that are written already.
template <int kBits>
void dither_words(const float* __restrict x, size_t apart, size_t n, const float* __restrict scales, uint32_t key, uint32_t index,
                  [[maybe_unused]] size_t fetched, uint32_t* __restrict words) {
  constexpr size_t kLanes = 32 / kBits;
  size_t i = 0;
#if defined(__AVX2__)
  Ints counters[kLanes];
  const auto start = [&](size_t at) {
    for (size_t l = 0; l < kLanes; ++l) counters[l] = counters_from((index + static_cast<uint32_t>(l * apart + at)) * kStep + key);
  };
  const auto write = [&](size_t at) {
    Ints sums = all(0u);
#pragma GCC unroll 4
    for (size_t l = 0; l < kLanes; ++l) {
      const Floats v = multiply(load(x + l * apart + at), all(scales[l]));
      sums = add(sums, in_place<kBits>(dithered(v, counters[l]), l));
    }
    store(words + at, swapped(sums));
  };
  start(0);
  i = each_vector(n, [&](size_t at) {
    for (size_t l = 0; l < kLanes; ++l)
      __builtin_prefetch(reinterpret_cast<const char*>(x + l * apart + at) + (fetched > 0 ? fetched : kAhead));
  }, write);
  if (i < n && n >= kWidth) {
    start(n - kWidth);
    write(n - kWidth);
    i = n;
  }
#endif
  if (i == n) return;
  for (size_t j = i; j < n; ++j) words[j] = 0;
  for (size_t l = 0; l < kLanes; ++l) {
    const size_t from = l * apart + i;
    dither_lane(x + from, n - i, {scales[l], 1.0f, 1.0f}, key, index + static_cast<uint32_t>(from), static_cast<int>(l) * kBits, words + i);
  }
  for (size_t j = i; j < n; ++j) words[j] = big(words[j]);
}

// A negative lane has borrowed from the next one. Adding half the range to every lane makes all of them independent.
template <int kBits>
inline int32_t lane_of(uint32_t word, int shift) {
  constexpr uint32_t half = 1u << (kBits - 1), halves = kBits == 8 ? 0x80808080u : 0x80008000u;
  return static_cast<int32_t>(((big(word) + halves) >> shift) & (2 * half - 1)) - static_cast<int32_t>(half);
}

template <int kBits>
void unpack_lane(const uint32_t* __restrict words, size_t n, int shift, int32_t* __restrict q) {
  for (size_t i = 0; i < n; ++i) q[i] = lane_of<kBits>(words[i], shift);
}

template <int kBits>
void dequantize_lane(const uint32_t* __restrict words, size_t n, int shift, ScaleF s, float* __restrict x, bool nontemporal) {
  const auto value = [=](size_t i) { return static_cast<float>(lane_of<kBits>(words[i], shift)); };
  if (shift == 0 && n > kLong)  // the first read of words that another processor has written
    for (size_t i = 0; i < n; i += kLine) __builtin_prefetch(words + i);
  if (s.f2 == 1.0f && s.m == 1.0f) return each_written(x, n, nontemporal, [=](size_t i) { return value(i) * s.f1; });
  for (size_t i = 0; i < n; ++i) x[i] = ((value(i) * s.m) * s.f1) * s.f2;
}

template <int kBits>
void dequantize_words(const uint32_t* __restrict words, size_t n, const float* __restrict scales, float* __restrict x, size_t apart) {
  constexpr size_t kLanes = 32 / kBits;
  size_t i = 0;
#if defined(__AVX2__)
  constexpr uint32_t half = 1u << (kBits - 1), halves = kBits == 8 ? 0x80808080u : 0x80008000u;
  const auto write = [&](size_t at) {
    const Ints word = add(swapped(load(words + at)), all(halves));
#pragma GCC unroll 4
    for (size_t l = 0; l < kLanes; ++l) {
      const Ints lane = both(right(word, _mm_cvtsi32_si128(static_cast<int>(l) * kBits)), all(2 * half - 1));
      store(x + l * apart + at, multiply(to_floats(subtract(lane, all(half))), all(scales[l])));
    }
  };
  i = each_vector(n, [&](size_t at) {
    for (size_t l = 0; l < kLanes; ++l) ahead_to_write(x + l * apart + at);
  }, write);
  if (i < n && n >= kWidth) {
    write(n - kWidth);
    i = n;
  }
#endif
  for (; i < n; ++i)
    for (size_t l = 0; l < kLanes; ++l)
      x[l * apart + i] = static_cast<float>(lane_of<kBits>(words[i], static_cast<int>(l) * kBits)) * scales[l];
}

}  // namespace
}  // namespace switchagg
