#include "switchagg/native/worker/density.h"

#include <algorithm>
#include <bit>

namespace switchagg {
namespace {

constexpr uint32_t kFinest = 16;

uint32_t mixed(uint32_t v) {
  v ^= v >> 16;
  v *= 0x7FEB352Du;
  v ^= v >> 15;
  v *= 0x846CA68Bu;
  return v ^ v >> 16;
}

// A bit for each 16 elements of a group: 1 if any is not zero.
template <typename T>
uint64_t bits_of(const T* x, T magnitude) {
  uint64_t bits = 0;
  for (uint32_t block = 0; block < DensityProbe::kGroup / kFinest; ++block, x += kFinest) {
    T any = 0;
    for (uint32_t i = 0; i < kFinest; ++i) any = static_cast<T>(any | x[i]);
    if (any & magnitude) bits |= uint64_t{1} << block;
  }
  return bits;
}

uint64_t group_bits(const Call& call, const uint8_t* x) {
  switch (call.dtype) {
    case DType::f64:
      return bits_of(reinterpret_cast<const uint64_t*>(x), ~uint64_t{0} >> 1);
    case DType::i64:
      return bits_of(reinterpret_cast<const uint64_t*>(x), ~uint64_t{0});
    case DType::f16:
    case DType::bf16:
      return bits_of(reinterpret_cast<const uint16_t*>(x), static_cast<uint16_t>(0x7fff));
    case DType::f32:
      return bits_of(reinterpret_cast<const uint32_t*>(x), ~uint32_t{0} >> 1);
    default:
      return bits_of(reinterpret_cast<const uint32_t*>(x), ~uint32_t{0});
  }
}

// The bits of what this rank would send.
uint64_t own_bits(const Call& call, uint64_t place) {
  if (!call.memory) return group_bits(call, call.in + (place - call.in_begin) * call.element_bytes());
  std::array<float, DensityProbe::kGroup> sum;
  call.add_memory(choose_lane_kernels(), place, sum.size(), sum.data());
  return bits_of(reinterpret_cast<const uint32_t*>(sum.data()), ~uint32_t{0} >> 1);
}

// Counts the bits, then those of pairs, of pairs of pairs, and so on.
void count(uint64_t bits, std::array<uint64_t, DensityCounts::kSizes>& counts) {
  constexpr uint64_t firsts[] = {0x5555555555555555u, 0x1111111111111111u, 0x0101010101010101u,
                                 0x0001000100010001u, 0x0000000100000001u, 1};
  counts[0] += static_cast<uint64_t>(std::popcount(bits));
  for (uint32_t size = 1; size < DensityCounts::kSizes; ++size) {
    bits = (bits | bits >> (1u << (size - 1))) & firsts[size - 1];
    counts[size] += static_cast<uint64_t>(std::popcount(bits));
  }
}

}  // namespace

std::vector<uint64_t> DensityProbe::sample_input(const Call& call, uint32_t segment) {
  std::vector<uint64_t> places;
  const uint64_t from = std::max(call.in_begin, call.out_begin), to = std::min(call.in_end, call.out_end);
  if (from >= to || !call.in || !call.out) return places;
  seen_ += to - from;
  const uint64_t first = (from + kGroup - 1) / kGroup, last = to / kGroup;  // whole groups, counted from the segment's start
  for (uint32_t i = 0; seen_ >= kStride; ++i) {
    seen_ -= kStride;
    if (first >= last) continue;
    const uint32_t draw = mixed(mixed(call.call_number * 0x9E3779B1u ^ segment) + i * 0x9E3779B1u);
    const uint64_t place = (first + draw % (last - first)) * kGroup;
    places.push_back(place);
    ++counts_.groups;
    count(own_bits(call, place), counts_.own);
  }
  return places;
}

void DensityProbe::sample_result(const Call& call, const std::vector<uint64_t>& places) {
  if (!call.in_limbs() && call.bits < 32) return;
  counts_.summed += places.size();
  for (uint64_t place : places)
    count(group_bits(call, call.out + (place - call.out_begin) * call.element_bytes()), counts_.sum);
}

}  // namespace switchagg
