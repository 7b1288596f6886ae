// The skip policy as the engine carries it out: what rank 0's word in a header's RESULT makes of the next collective.
// switchagg.rules.planner.SkipPolicy and worker_lib/plan.py (`Call.under`) are the readable twins. No I/O; it decides nothing.
#pragma once

#include <cstdint>

#include "switchagg/native/worker/plan.h"

namespace switchagg {

struct Policy {
  static constexpr uint32_t kValid = 1u << 31, kDense = 1u << 30, kBlock = (1u << 17) - 1, kMaxBlock = 65536;
  static constexpr uint32_t kLanesShift = 20, kLanes = 7;  // 0: the type's own, else 1, 2, 3, 4 for 8, 16, 32, 64 bits

  // Whether a header's word is a policy; if not, the one before stays.
  static bool valid(uint32_t word) {
    const uint32_t block = word & kBlock;
    return (word & kValid) && block >= 1 && block <= kMaxBlock && (word >> kLanesShift & kLanes) <= 4;
  }

  // Settles what `call` leaves to the policy.
  static void settle(Call& call, uint32_t word);
};

}  // namespace switchagg
