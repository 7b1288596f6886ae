// Compiled once for each instruction set, under the name KERNELS. The loops are plain, so that the compiler
// vectorizes them: the words are big-endian in memory and swapped in registers, one pass over each array.
#include "switchagg/native/shared/slot_kernels.h"

namespace switchagg {
namespace {

inline uint32_t load(const uint8_t* at) {
  uint32_t word;
  __builtin_memcpy(&word, at, 4);
  return word;
}

inline void store(uint8_t* at, uint32_t word) { __builtin_memcpy(at, &word, 4); }

inline uint32_t swap(uint32_t word) {  // between big-endian and the host's order
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return __builtin_bswap32(word);
#else
  return word;
#endif
}

void add(uint8_t* __restrict to, const uint8_t* __restrict from, size_t words) {
  for (size_t i = 0; i < words; ++i) store(to + 4 * i, swap(swap(load(to + 4 * i)) + swap(load(from + 4 * i))));
}

void or_words(uint8_t* __restrict to, const uint8_t* __restrict from, size_t words) {
  for (size_t i = 0; i < words; ++i) store(to + 4 * i, load(to + 4 * i) | load(from + 4 * i));
}

// Vectors by name: of a loop over an array of sums compilers make stores to memory and loads that wait for them.
typedef uint32_t Vector __attribute__((vector_size(32)));
constexpr size_t kEach = sizeof(Vector) / 4, kStrip = 4 * kEach;

inline Vector swap(Vector words) {
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
  return words;
#elif defined(__AVX2__)
  typedef uint8_t Bytes __attribute__((vector_size(32)));
  constexpr Bytes reversed = {3,  2,  1,  0,  7,  6,  5,  4,  11, 10, 9,  8,  15, 14, 13, 12,
                              19, 18, 17, 16, 23, 22, 21, 20, 27, 26, 25, 24, 31, 30, 29, 28};
  return reinterpret_cast<Vector>(__builtin_shuffle(reinterpret_cast<Bytes>(words), reversed));
#else
  return words << 24 | (words & 0xFF00) << 8 | (words >> 8 & 0xFF00) | words >> 24;
#endif
}

inline Vector raw_vector(const uint8_t* at) {
  Vector words;
  __builtin_memcpy(&words, at, sizeof words);
  return words;
}
inline Vector load_vector(const uint8_t* at) { return swap(raw_vector(at)); }

inline void store_raw(uint8_t* at, Vector words) { __builtin_memcpy(at, &words, sizeof words); }
inline void store_vector(uint8_t* at, Vector words) { store_raw(at, swap(words)); }

// By vectors: glibc 2.36 copies 2 KB and more by `rep movsb` on AMD's Zen 3, which takes 12 times as long as these where (to - from)
// modulo 4,096 is 4 to 31 (glibc's bug 30994).
void copy(uint8_t* __restrict to, const uint8_t* __restrict from, size_t words) {
  size_t at = 0;
#if defined(__AVX2__)
  for (; at + kStrip <= words; at += kStrip) {
    const uint8_t* const next = from + 4 * at;
    const Vector a = raw_vector(next), b = raw_vector(next + 32), c = raw_vector(next + 64), d = raw_vector(next + 96);
    store_raw(to + 4 * at, a);
    store_raw(to + 4 * at + 32, b);
    store_raw(to + 4 * at + 64, c);
    store_raw(to + 4 * at + 96, d);
  }
#endif
  if (at < words) __builtin_memcpy(to + 4 * at, from + 4 * at, 4 * (words - at));
}

// Bytes to prefetch ahead: other processors have written the records and read the sum before, and each is too short for prefetching
// by hardware to begin.
constexpr size_t kAhead = 1024;

template <typename Combine>
inline void combine_all(uint8_t* to, const uint8_t* const* from, size_t count, size_t words, Combine combine) {
  size_t at = 0;
  for (; at + kStrip <= words; at += kStrip) {
    const uint8_t* next = from[0] + 4 * at;
    if (4 * at + kAhead < 4 * words) {
      __builtin_prefetch(to + 4 * at + kAhead, 1);
      __builtin_prefetch(to + 4 * at + kAhead + 64, 1);
    }
    for (size_t k = 0; k < count; ++k) {
      __builtin_prefetch(from[k] + 4 * at + kAhead);
      __builtin_prefetch(from[k] + 4 * at + kAhead + 64);
    }
    Vector a = load_vector(next), b = load_vector(next + 32), c = load_vector(next + 64), d = load_vector(next + 96);
    for (size_t k = 1; k < count; ++k) {
      next = from[k] + 4 * at;
      a = combine(a, load_vector(next));
      b = combine(b, load_vector(next + 32));
      c = combine(c, load_vector(next + 64));
      d = combine(d, load_vector(next + 96));
    }
    store_vector(to + 4 * at, a);
    store_vector(to + 4 * at + 32, b);
    store_vector(to + 4 * at + 64, c);
    store_vector(to + 4 * at + 96, d);
  }
  for (; at < words; ++at) {
    uint32_t sum = swap(load(from[0] + 4 * at));
    for (size_t k = 1; k < count; ++k) sum = combine(sum, swap(load(from[k] + 4 * at)));
    store(to + 4 * at, swap(sum));
  }
}

void add_all(uint8_t* to, const uint8_t* const* from, size_t count, size_t words) {
  combine_all(to, from, count, words, [](auto a, auto b) { return a + b; });
}

void or_all(uint8_t* to, const uint8_t* const* from, size_t count, size_t words) {
  combine_all(to, from, count, words, [](auto a, auto b) { return a | b; });
}

}  // namespace

const SlotKernels KERNELS = {copy, add, or_words, add_all, or_all};

}  // namespace switchagg
