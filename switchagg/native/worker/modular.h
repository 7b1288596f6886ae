// Modular quantization for worker_lib/compress/modular.py: low bits of integers in words, checks, and sums found again
// near a reference. The readable twin is worker_lib/compress/residues.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchagg/native/worker/grid_kernels.h"

namespace switchagg {

inline constexpr size_t kCheckBlock = 4096;  // elements a check word

struct Residues {
  int bits;  // of lanes, 2 to 16
  double unit;
  const uint32_t* factors;  // kCheckBlock of them
};

// Lanes, then a check word for each block of elements; returns how many elements were not usable.
template <typename T>
uint64_t to_residues(const T* x, size_t count, const Residues& how, DrawKey key, uint32_t* words);

// What one rank's words alone say.
template <typename T>
void residue_values(const T* x, size_t count, double unit, DrawKey key, T* out);

// Sums and their means. Sets wrong[i] where block i does not give its check word again; returns the largest distance to
// what was expected, in units.
template <typename T>
int32_t from_residues(const uint32_t* words, size_t count, const Residues& how, const double* reference, double workers,
                      T* sum, double* mean, uint8_t* wrong);

}  // namespace switchagg
