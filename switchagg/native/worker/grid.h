// A vector to words of lanes and back, for worker_lib/compress: chunks that stay in the cache between the kernels. The
// readable twin is worker_lib/compress/rounding.py with lanes.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchagg/native/worker/grid_kernels.h"

namespace switchagg {

// Lanes of `bits` in words: floor(32 / bits) neighbours a word up to 16 bits, above that one. Elements [i block,
// (i + 1) block) have the unit units[i]; where that is 0 or not finite they become 0.
struct Grid {
  int bits;
  size_t block;
  const void* units;  // float or double, as the elements
};

// Returns how many elements were over `top` units and have been cut.
template <typename T>
uint64_t to_words(const T* x, size_t count, const Grid& grid, int32_t top, DrawKey key, uint32_t* words);

template <typename T>
void from_words(const uint32_t* words, size_t count, const Grid& grid, T* x);

// The sum of squares of lanes of at most 16 bits.
uint64_t square_of_words(const uint32_t* words, size_t count, int bits);

}  // namespace switchagg
