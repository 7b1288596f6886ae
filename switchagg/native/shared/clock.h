// The clock of timers and statistics: nanoseconds since a fixed moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace switchagg {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

using Clock = int64_t (*)();  // a function like now_ns(), handed to those whose time may be another's

inline timespec timespec_of(int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace switchagg
