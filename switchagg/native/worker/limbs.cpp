#include "switchagg/native/worker/limbs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "switchagg/native/shared/wire.h"

namespace switchagg {
namespace {

using Wide = unsigned __int128;

template <typename T>
struct Format {  // of a normal number: bits of its mantissa, and the exponent of the smallest
  static constexpr int kPrecision = std::numeric_limits<T>::digits, kLeast = std::numeric_limits<T>::min_exponent - 1;
};
template <>
struct Format<Float16> {
  static constexpr int kPrecision = 11, kLeast = -14;
};
template <>
struct Format<BFloat16> {
  static constexpr int kPrecision = 8, kLeast = -126;
};

int top_bit(Wide v) {
  const uint64_t high = static_cast<uint64_t>(v >> 64), low = static_cast<uint64_t>(v);
  return high ? 127 - std::countl_zero(high) : 63 - std::countl_zero(low);
}

// A number of the type's precision, q * 2^exponent, as the type.
template <typename T>
T value_of(uint64_t q, int exponent, bool negative) {
  const double value = std::ldexp(static_cast<double>(q), exponent);
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(negative ? -value : value);
  } else {
    const uint16_t sign = negative ? 0x8000 : 0;
    if constexpr (std::is_same_v<T, BFloat16>)
      return static_cast<T>(sign | std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
    if (value >= 65536) return static_cast<T>(sign | 0x7c00);
    if (value < 0x1p-14) return static_cast<T>(sign | static_cast<uint16_t>(value * 0x1p24));
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    return static_cast<T>(sign | static_cast<uint16_t>((bits - 0x38000000u) >> 13));
  }
}

// v * 2^exponent, rounded to nearest even; v > 0, and `more` if the true value is a little larger than v.
template <typename T>
T rounded(Wide v, bool more, int exponent, bool negative) {
  const int leading = top_bit(v) + exponent;
  const int last = std::max(leading, Format<T>::kLeast) - (Format<T>::kPrecision - 1);  // exponent of the last bit
  const int cut = last - exponent;
  if (cut <= 0) return value_of<T>(static_cast<uint64_t>(v), exponent, negative);
  if (cut > 127) return value_of<T>(0, 0, negative);
  uint64_t q = static_cast<uint64_t>(v >> cut);
  const Wide rest = v & ((Wide{1} << cut) - 1), half = Wide{1} << (cut - 1);
  if (rest > half || (rest == half && (more || (q & 1)))) ++q;
  return value_of<T>(q, last, negative);
}

int32_t signed_word(const uint32_t* word) {
  return static_cast<int32_t>(wire::load32(reinterpret_cast<const uint8_t*>(word)));
}

// Rounded towards the nearest float with an odd last bit, so that rounding to fewer bits afterwards is as if at once.
float rounded_to_odd(double v) {
  const float nearest = static_cast<float>(v);
  const double back = nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (back != v && !(bits & 1)) bits += std::abs(back) < std::abs(v) ? 1 : ~0u;
  return std::bit_cast<float>(bits);
}

// Sums of one word: a quotient of so few bits is a midpoint of the type exactly, or far enough from it for a double.
template <typename T>
void round_words(const uint32_t* words, int unit, size_t n, uint32_t divisor, T* out) {
  const double scale = std::ldexp(1.0, unit);
  const auto value = [&](size_t i) { return signed_word(words + i) / static_cast<double>(divisor) * scale; };
  if constexpr (std::is_same_v<T, float>) {
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(value(i));
  } else {
    const LaneKernels& kernels = choose_lane_kernels();
    float odd[256];
    for (size_t i = 0; i < n; i += std::size(odd)) {
      const size_t count = std::min(std::size(odd), n - i);
      for (size_t j = 0; j < count; ++j) odd[j] = rounded_to_odd(value(i + j));
      (std::is_same_v<T, Float16> ? kernels.narrow_f16 : kernels.narrow_bf16)(odd, count, reinterpret_cast<uint16_t*>(out + i));
    }
  }
}

}  // namespace

template <typename T>
void round_sums(const uint32_t* words, size_t stride, const LimbGrid& grid, size_t n, uint32_t divisor, T* out) {
  if constexpr (!std::is_same_v<T, double>) {
    if (grid.words == 1) return round_words(words, grid.unit, n, divisor, out);
  }
  const int places = grid.limb_bits, count = static_cast<int>(grid.words);
  const int64_t mask = (int64_t{1} << places) - 1;
  const int kept = 4;  // digits, of at most 31 bits, that are divided and rounded; below them it matters only if they are 0
  uint32_t digits[96];
  for (size_t i = 0; i < n; ++i) {
    int64_t carry = 0;
    for (int j = 0; j < count; ++j) {
      carry += signed_word(words + static_cast<size_t>(j) * stride + i);
      digits[j] = static_cast<uint32_t>(carry & mask);
      carry >>= places;
    }
    const bool negative = carry < 0;
    if (negative) {  // two's complement, digit by digit
      int64_t borrow = 0;
      for (int j = 0; j < count; ++j) {
        borrow -= digits[j];
        digits[j] = static_cast<uint32_t>(borrow & mask);
        borrow >>= places;
      }
      carry = borrow - carry;
    }
    digits[count] = static_cast<uint32_t>(carry);  // less than the number of ranks
    int top = count;
    while (top >= 0 && digits[top] == 0) --top;
    if (top < 0) {
      out[i] = value_of<T>(0, 0, false);
      continue;
    }
    const int bottom = std::max(0, top - (kept - 1));
    Wide v = 0;
    for (int j = top; j >= bottom; --j) v = v << places | digits[j];
    bool more = false;
    for (int j = 0; j < bottom; ++j) more |= digits[j] != 0;
    int exponent = bottom * places + grid.unit;
    if (divisor > 1) {
      const int up = 126 - top_bit(v);
      const Wide scaled = v << up | (more ? 1 : 0);
      v = scaled / divisor;
      more = scaled % divisor != 0;
      exponent -= up;
    }
    out[i] = rounded<T>(v, more, exponent, negative);
  }
}

template void round_sums(const uint32_t*, size_t, const LimbGrid&, size_t, uint32_t, float*);
template void round_sums(const uint32_t*, size_t, const LimbGrid&, size_t, uint32_t, double*);
template void round_sums(const uint32_t*, size_t, const LimbGrid&, size_t, uint32_t, Float16*);
template void round_sums(const uint32_t*, size_t, const LimbGrid&, size_t, uint32_t, BFloat16*);

}  // namespace switchagg
