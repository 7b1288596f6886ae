// Factors that are powers of two, for scales. docs/protocol.md, section 6.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "switchagg/native/worker/lane_kernels.h"

namespace switchagg {

template <typename T>
constexpr int kBias = std::numeric_limits<T>::max_exponent - 1;

// 2^k. k is in the normal range, because every factor is split in two.
template <typename T>
T pow2(int k) {
  using Bits = std::conditional_t<sizeof(T) == sizeof(float), uint32_t, uint64_t>;
  return std::bit_cast<T>(static_cast<Bits>(k + kBias<T>) << (std::numeric_limits<T>::digits - 1));
}

// The scale m * 2^k. One float holds it wherever that is exact: unless a product could leave the normal range.
// Narrow lanes that are dequantized so, by k > -60, are quantized by k up to 75.
template <typename T>
Scale<T> scale_of(int k, T m) {
  if (sizeof(T) == sizeof(float) && k > -60 && k < 80) return {pow2<T>(k) * m, 1, 1};
  return {pow2<T>(k / 2), pow2<T>(k - k / 2), m};
}

}  // namespace switchagg
