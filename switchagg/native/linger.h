// Waiting a little without sleeping.
#pragma once

#include <sched.h>

#include <cstdint>

#include "switchagg/native/clock.h"

namespace switchagg {

// About what sleeping and being woken costs, to both sides.
constexpr int64_t kLingerNs = 50'000;

// Lets other threads run until there() is true, for no longer than kLingerNs. Returns there().
template <typename F>
bool linger(F&& there) {
  const int64_t until = now_ns() + kLingerNs;
  do {
    if (there()) return true;
    sched_yield();
  } while (now_ns() < until);
  return there();
}

}  // namespace switchagg
