// Random numbers that a seed determines, the same on every machine and of every compiler: a statement draws once, since compilers
// evaluate operands and arguments in different orders.
#pragma once

#include <cstdint>

#include "switchagg/native/shared/splitmix.h"

namespace simulation {

inline uint64_t mix(uint64_t x) { return switchagg::splitmix(x + switchagg::kSplitMixStep); }
inline uint64_t mix(uint64_t a, uint64_t b) { return mix(mix(a) ^ b); }
inline double unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }  // 0 <= u < 1

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed)) {}
  uint64_t next() { return mix(state_++); }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(next() % static_cast<uint64_t>(most - least + 1));
  }
  bool chance(double p) { return unit(next()) < p; }
  template <typename T, size_t N>
  T one_of(const T (&choices)[N]) { return choices[below(N)]; }

 private:
  uint64_t state_;
};

}  // namespace simulation
