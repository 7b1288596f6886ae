// The time that timers and statistics use, in nanoseconds since some fixed moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace switchagg {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A duration as system calls take it.
inline timespec timespec_of(int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace switchagg
