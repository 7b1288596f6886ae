// Sums in limbs: the words that an element needs, and the rounding of a sum of words to the element's type. docs/protocol.md,
// sections 5 to 7, defines and proves it; tests/reference/exact.py is an oracle of it. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchagg/native/worker/sequence.h"

namespace switchagg {

// Limbs of n elements, `words` of them from `limb` on, in planes of `stride` words.
template <typename K, typename T>
void write_limbs(K kernel, const T* x, uint64_t n, const LimbGrid& grid, uint32_t limb, uint32_t words, uint32_t stride, uint32_t* to) {
  for (uint32_t j = 0; j < words; ++j, to += stride)
    kernel(x, n, grid.shift + static_cast<int>(limb + j) * grid.limb_bits, grid.mask(), to);
}

// Rounds sums of limbs to nearest even, once: element i is the sum over j of the signed words[j * stride + i], big-endian,
// times 2^(j limb_bits + unit), divided by `divisor`.
template <typename T>
void round_sums(const uint32_t* words, size_t stride, const LimbGrid& grid, size_t n, uint32_t divisor, T* out);

// Types of the elements that are results.
enum class Float16 : uint16_t {};
enum class BFloat16 : uint16_t {};

}  // namespace switchagg
