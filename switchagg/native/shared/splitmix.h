// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#pragma once

#include <cstdint>

namespace switchagg {

inline constexpr uint64_t kSplitMixStep = 0x9E3779B97F4A7C15;  // from one state to the next

// Its output for a state.
constexpr uint64_t splitmix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

}  // namespace switchagg
