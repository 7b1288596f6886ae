// In the place of the product's clock: a time that only the simulation moves.
#pragma once

#include <cstdint>
#include <ctime>

namespace switchagg {

inline int64_t virtual_ns = 0;
inline int64_t now_ns() { return virtual_ns; }

inline timespec timespec_of(int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace switchagg
