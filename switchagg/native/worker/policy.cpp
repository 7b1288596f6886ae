#include "switchagg/native/worker/policy.h"

#include <algorithm>

namespace switchagg {
namespace {

// The narrowest lanes that the type can travel in and that are no narrower than asked for.
uint8_t lanes(DType dtype, uint32_t at_least) {
  switch (dtype) {
    case DType::i32:
    case DType::raw:
      return 32;
    case DType::i64:
      return 64;
    default:
      if (at_least <= 8) return 8;
      if (at_least <= 16) return 16;
      return dtype == DType::f64 && at_least > 32 ? 64 : 32;
  }
}

}  // namespace

void Policy::settle(Call& call, uint32_t word) {
  if (call.auto_zeros) call.sparse = !(word & kDense);
  if (call.auto_block) call.block = word & kBlock;
  if (call.auto_lanes) {
    const uint32_t code = word >> kLanesShift & kLanes;
    const uint32_t shared = call.workers > 127 ? 16 : 8;  // the narrowest that so many workers can share
    call.bits = lanes(call.dtype, std::max<uint32_t>({code ? 4u << code : 64, call.auto_lanes, shared}));
  }
}

}  // namespace switchagg
