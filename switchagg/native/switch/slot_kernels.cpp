// Compiled once for each instruction set, under the name KERNELS. The loops are plain, so that the compiler
// vectorizes them: the words are big-endian in memory and swapped in registers, one pass over each array.
#include "switchagg/native/switch/slot_kernels.h"

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

void copy(uint8_t* __restrict to, const uint8_t* __restrict from, size_t words) {
  __builtin_memcpy(to, from, 4 * words);
}

void add(uint8_t* __restrict to, const uint8_t* __restrict from, size_t words) {
  for (size_t i = 0; i < words; ++i) store(to + 4 * i, swap(swap(load(to + 4 * i)) + swap(load(from + 4 * i))));
}

void or_words(uint8_t* __restrict to, const uint8_t* __restrict from, size_t words) {
  for (size_t i = 0; i < words; ++i) store(to + 4 * i, load(to + 4 * i) | load(from + 4 * i));
}

}  // namespace

const SlotKernels KERNELS = {copy, add, or_words};

}  // namespace switchagg
