// Waiting a little without sleeping.
#pragma once

#include <sched.h>

#include <cstdint>

#include "switchagg/native/shared/clock.h"

namespace switchagg {

// About what sleeping and being woken costs, to both sides.
constexpr int64_t kLingerNs = 50'000;

// Lets other threads of this processor run once, and where `hurried` again and again for up to kLingerNs, until there() is
// true. Returns there(). Whoever waits for much should not be hurried: a processor whose threads all linger takes none from
// another that has too many.
template <typename F>
bool linger(bool hurried, F&& there) {
  const int64_t until = hurried ? now_ns() + kLingerNs : 0;
  do {
    if (there()) return true;
    sched_yield();
  } while (hurried && now_ns() < until);
  return there();
}

}  // namespace switchagg
