// Compiled once for each instruction set (KERNELS); plain loops that the compiler turns into vectors.
#include "switchagg/native/worker/lane_kernels.h"

#include "switchagg/native/worker/loops.h"
#include "switchagg/native/worker/narrow_lanes.h"
#include "switchagg/native/worker/vectors.h"

namespace switchagg {
namespace {

uint64_t count_bits(const uint32_t* bits, size_t words) {
  uint64_t total = 0;
  for (size_t i = 0; i < words; ++i) total += static_cast<uint64_t>(__builtin_popcount(bits[i]));
  return total;
}

void flush() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

inline void set_bit(uint32_t* bits, size_t i) { bits[i >> 5] |= 1u << (i & 31); }

template <typename T, T kSign>
void scan(const T* x, size_t blocks, size_t block, uint32_t* bits, size_t at, Extremes<T>* found) {
  T top = found->largest, least = static_cast<T>(found->smallest - 1);  // less 1, so that 0 is the largest
  bool negative = false;
  for (size_t b = 0; b < blocks; ++b, x += block) {
    T largest = 0, any = 0;
    for (size_t i = 0; i < block; ++i) {
      const T magnitude = static_cast<T>(x[i] & static_cast<T>(~kSign)), below = static_cast<T>(magnitude - 1);
      largest = magnitude > largest ? magnitude : largest;
      least = below < least ? below : least;
      any = static_cast<T>(any | x[i]);
    }
    if (largest != 0) {
      set_bit(bits, at + b);
      top = largest > top ? largest : top;
    } else {
      negative |= any != 0;
    }
  }
  found->largest = top;
  found->smallest = static_cast<T>(least + 1);
  found->negative_zero |= negative;
}

void scan_words(const uint32_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at) {
  for (size_t b = 0; b < blocks; ++b, x += block) {
    uint32_t any = 0;
    for (size_t i = 0; i < block; ++i) any |= x[i];
    if (any != 0) set_bit(bits, at + b);
  }
}

// The common case, float32: vectors of maxima, of each block and of the chunk. Only blocks of zeros are looked at again, for their signs.
#if defined(__AVX2__)
template <bool kSmallest, size_t kStrip>
void scan_vectors(const uint32_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at, Extremes<uint32_t>* found) {
  const bool is_long = blocks * block > kLong;
  const Ints magnitudes = all(0x7fffffffu), ones = all(~0u);
  Ints top = all(0u), least = ones;
  bool negative = found->negative_zero;
  for (size_t b = 0, n; b < blocks; b += n) {
    const size_t bit = (at + b) % 32;
    n = blocks - b < 32 - bit ? blocks - b : 32 - bit;
    uint32_t word = 0;
    for (size_t k = 0; k < n; ++k, x += block) {
      Ints largest = all(0u), other = all(0u);
      for (size_t strip = 0; strip < block; strip += kStrip) {
#pragma GCC unroll 4
        for (size_t i = strip; i < strip + kStrip; i += kLine) {
          if (is_long) ahead(x + i);
#pragma GCC unroll 2
          for (size_t j = 0; j < kLine; j += kWidth) {
            const Ints magnitude = both(load(x + i + j), magnitudes);
            (j == 0 ? largest : other) = larger(j == 0 ? largest : other, magnitude);
            if constexpr (kSmallest) least = smaller(least, add(magnitude, ones));
          }
        }
      }
      largest = larger(largest, other);
      top = larger(top, largest);
      if (any_of(largest, magnitudes)) {
        word |= 1u << k;
      } else if (!negative) {
        Ints any = all(0u);
        for (size_t i = 0; i < block; i += kWidth) any = either(any, load(x + i));
        negative = any_of(any, any);
      }
    }
    if (word) bits[(at + b) / 32] |= word << bit;
  }
  if (const uint32_t largest = largest_of(top); largest > found->largest) found->largest = largest;
  if constexpr (kSmallest)
    if (const uint32_t below = smallest_of(least); below < found->smallest - 1) found->smallest = below + 1;
  found->negative_zero = negative;
}

template <bool kSmallest>
void scan32(const uint32_t* x, size_t blocks, size_t block, uint32_t* bits, size_t at, Extremes<uint32_t>* found) {
  constexpr size_t kLines = 4 * kLine;
  (block % kLine ? scan<uint32_t, 0x80000000u> : block % kLines ? scan_vectors<kSmallest, kLine> : scan_vectors<kSmallest, kLines>)(
      x, blocks, block, bits, at, found);
}
#else
template <bool>
constexpr auto scan32 = scan<uint32_t, 0x80000000u>;
#endif

template <typename T, typename Q>
void quantize(const T* __restrict x, size_t n, Scale<T> s, Q* __restrict q) {
  for (size_t i = 0; i < n; ++i) q[i] = nearest_as<Q>((x[i] * s.f1) * s.f2);
}

// The sum modulo 2^64 of words, as integers with a sign, times their weights.
#if defined(__AVX2__)
class WeightedWords {
 public:
  void add(Ints words, const int32_t* weights) {
    const uint32_t* const w = reinterpret_cast<const uint32_t*>(weights);
    even_ = add_wide(even_, multiply_lower(words, load(w)));
    odd_ = add_wide(odd_, multiply_lower(upper(words), load(w + 1)));
  }
  uint64_t sum() const {
    alignas(Ints) uint64_t sums[kWidth / 2];
    store(reinterpret_cast<uint32_t*>(sums), add_wide(even_, odd_));
    uint64_t sum = 0;
    for (const uint64_t each : sums) sum += each;
    return sum;
  }

 private:
  Ints even_ = all(0u), odd_ = all(0u);
};
#endif

inline uint64_t weighted_word(uint32_t word, int32_t weight) {
  return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(word)) * weight);
}

uint64_t weighted_sum_be(const uint32_t* __restrict words, const int32_t* __restrict weights, size_t n) {
  uint64_t sum = 0;
  size_t i = 0;
#if defined(__AVX2__)
  WeightedWords vectors;
  for (; i + kWidth <= n; i += kWidth) vectors.add(swapped(load(words + i)), weights + i);
  sum = vectors.sum();
#endif
  for (; i < n; ++i) sum += weighted_word(big(words[i]), weights[i]);
  return sum;
}

template <bool kWeighed>
uint64_t quantize_be(const float* __restrict x, size_t n, ScaleF s, uint32_t* __restrict words, const int32_t* __restrict weights) {
  uint64_t sum = 0;
  size_t i = 0;
#if defined(__AVX2__)
  if (s.f2 == 1.0f) {
    const bool is_long = n > kLong;
    WeightedWords vectors;
    for (; i + kLine <= n; i += kLine) {
      if (is_long) ahead(x + i), ahead_to_write(words + i);
#pragma GCC unroll 2
      for (size_t j = i; j < i + kLine; j += kWidth) {
        const Ints q = nearest_of(multiply(load(x + j), all(s.f1)));
        store(words + j, swapped(q));
        if constexpr (kWeighed) vectors.add(q, weights + j);
      }
    }
    if constexpr (kWeighed) sum = vectors.sum();
  }
#endif
  x += i, words += i, weights += kWeighed ? i : 0;
  each_line(n - i, [=](size_t j) { ahead(x + j); }, [&](size_t j) {
    const uint32_t word = static_cast<uint32_t>(nearest_as<int32_t>((x[j] * s.f1) * s.f2));
    words[j] = big(word);
    if constexpr (kWeighed) sum += weighted_word(word, weights[j]);
  });
  return sum;
}

void quantize_f32_be(const float* x, size_t n, ScaleF s, uint32_t* words) { quantize_be<false>(x, n, s, words, nullptr); }

void cut_off_f32(const float* __restrict x, size_t n, ScaleF up, ScaleF down, float* __restrict left) {
  for (size_t i = 0; i < n; ++i) left[i] = x[i] - (nearest((x[i] * up.f1) * up.f2) * down.f1) * down.f2;
}

// Clamps, because a double can round up to the first value whose sum over n workers overflows.
void quantize_f64(const double* __restrict x, size_t n, ScaleD s, int32_t* __restrict q) {
  for (size_t i = 0; i < n; ++i) {
    const double v = nearest((x[i] * s.f1) * s.f2);
    const double below = v < s.m ? v : s.m;
    q[i] = static_cast<int32_t>(below > -s.m ? below : -s.m);
  }
}

template <typename Q, typename T>
void dequantize(const Q* __restrict q, size_t n, Scale<T> s, T* __restrict x) {
  for (size_t i = 0; i < n; ++i) x[i] = ((static_cast<T>(q[i]) * s.m) * s.f1) * s.f2;
}

void add_f32(const float* x, const float* memory, size_t n, float* sum) {
  for (size_t i = 0; i < n; ++i) sum[i] = x[i] + memory[i];
}

void subtract_f32(const float* __restrict x, size_t n, float* __restrict left) {
  for (size_t i = 0; i < n; ++i) left[i] = x[i] - left[i];
}

// `nontemporal`: whole lines are written past the cache; other threads may read them after flush().
template <bool kWeighed>
uint64_t dequantize_be(const uint32_t* __restrict words, size_t n, ScaleF s, float* __restrict x, [[maybe_unused]] bool nontemporal,
                       const int32_t* __restrict weights) {
  uint64_t sum = 0;
  size_t i = 0;
  const auto each = [&](size_t from, size_t to) {
    each_line(to - from, [=](size_t k) { ahead_to_write(x + from + k); }, [&](size_t k) {
      const size_t j = from + k;
      const uint32_t word = big(words[j]);
      x[j] = ((static_cast<float>(static_cast<int32_t>(word)) * s.m) * s.f1) * s.f2;
      if constexpr (kWeighed) sum += weighted_word(word, weights[j]);
    });
    return to;
  };
#if defined(__AVX2__)
  if (s.f2 == 1.0f && s.m == 1.0f) {
    const bool is_long = n > kLong;
    const size_t past_line = reinterpret_cast<uintptr_t>(x) / sizeof(float) % kLine;
    if (nontemporal && past_line != 0) i = each(0, n < kLine - past_line ? n : kLine - past_line);
    WeightedWords vectors;
    const auto lines = [&](size_t from, auto&& ask, auto&& write) {
      size_t k = from;
      for (; k + kLine <= n; k += kLine) {
        if (is_long) ask(k);
#pragma GCC unroll 2
        for (size_t j = k; j < k + kLine; j += kWidth) {
          const Ints q = swapped(load(words + j));
          write(x + j, multiply(to_floats(q), all(s.f1)));
          if constexpr (kWeighed) vectors.add(q, weights + j);
        }
      }
      return k;
    };
    i = nontemporal ? lines(i, [=](size_t at) { ahead(words + at); }, [](float* at, Floats v) { stream(at, v); })
                    : lines(i, [=](size_t at) { ahead(words + at), ahead_to_write(x + at); }, [](float* at, Floats v) { store(at, v); });
    if constexpr (kWeighed) sum += vectors.sum();
  }
#endif
  each(i, n);
  return sum;
}

// Prefetching gained nothing on Zen 5, and what is written cost time on Sapphire Rapids.
void sum_f32(const float* const* x, size_t count, size_t n, ScaleF up, ScaleF down, float* to, float* also, [[maybe_unused]] bool nontemporal) {
  const auto by_tiles = [&](size_t from, size_t end) {
    constexpr size_t kTile = 1024;  // whose integers stay in the first cache
    int32_t q[kTile];
    uint32_t sum[kTile];
    for (size_t i = from; i < end; i += kTile) {
      const size_t m = end - i < kTile ? end - i : kTile;
      for (size_t j = 0; j < m; ++j) sum[j] = 0;
      for (size_t r = 0; r < count; ++r) {
        quantize<float, int32_t>(x[r] + i, m, up, q);
        for (size_t j = 0; j < m; ++j) sum[j] += static_cast<uint32_t>(q[j]);
      }
      for (size_t j = 0; j < m; ++j)
        also[i + j] = to[i + j] = ((static_cast<float>(static_cast<int32_t>(sum[j])) * down.m) * down.f1) * down.f2;
    }
  };
#if defined(__AVX2__)
  if (up.f2 == 1.0f && down.f2 == 1.0f && down.m == 1.0f) {
    size_t i = 0;
    constexpr size_t kParts = kLine / kWidth;
    const auto lanes = [&](const float* at) { return nearest_of(multiply(load(at), all(up.f1))); };
    const size_t past_line = reinterpret_cast<uintptr_t>(also) / sizeof(float) % kLine;
    if (nontemporal && past_line != 0) i = n < kLine - past_line ? n : kLine - past_line;
    const size_t first = i;
    for (; i + kLine <= n; i += kLine) {
      // Of each rank a whole line before the next rank's: of 16 ranks a cache may not hold one of each.
      Ints sums[kParts];
      for (size_t j = 0; j < kParts; ++j) sums[j] = lanes(x[0] + i + j * kWidth);
      for (size_t r = 1; r < count; ++r)
        for (size_t j = 0; j < kParts; ++j) sums[j] = add(sums[j], lanes(x[r] + i + j * kWidth));
      for (size_t j = 0; j < kParts; ++j) {
        const Floats sum = multiply(to_floats(sums[j]), all(down.f1));
        const size_t at = i + j * kWidth;
        store(to + at, sum);
        if (nontemporal) {
          stream(also + at, sum);
        } else {
          store(also + at, sum);
        }
      }
    }
    by_tiles(0, first);
    return by_tiles(i, n);
  }
#endif
  by_tiles(0, n);
}

void copy_nontemporal(const float* from, size_t n, float* x) {
  each_written(x, n, true, [=](size_t i) { return from[i]; });
}

void dequantize_f32_be(const uint32_t* words, size_t n, ScaleF s, float* x, bool nontemporal) {
  dequantize_be<false>(words, n, s, x, nontemporal, nullptr);
}

void pack32(const int32_t* __restrict q, size_t words, uint32_t* __restrict out) {
  // Prefetches the next packet's words too, which are written next.
  each_line(words, [=](size_t i) { ahead_to_write(out + i); },
            [=](size_t i) { out[i] = big(static_cast<uint32_t>(q[i])); });
}

void unpack32(const uint32_t* __restrict in, size_t words, int32_t* __restrict q) {
  for (size_t i = 0; i < words; ++i) q[i] = static_cast<int32_t>(big(in[i]));
}

constexpr uint64_t kLimb = (1u << 22) - 1;

void pack_limbs(const int64_t* __restrict q, size_t n, uint32_t* __restrict out) {
  for (size_t i = 0; i < n; ++i) {
    const uint64_t v = static_cast<uint64_t>(q[i]);
    out[i] = big(static_cast<uint32_t>(v & kLimb));
    out[i + n] = big(static_cast<uint32_t>((v >> 22) & kLimb));
    out[i + 2 * n] = big(static_cast<uint32_t>(v >> 44));
  }
}

void unpack_limbs(const uint32_t* __restrict in, size_t n, int64_t* __restrict q) {
  for (size_t i = 0; i < n; ++i)
    q[i] = static_cast<int64_t>(static_cast<uint64_t>(big(in[i])) + (static_cast<uint64_t>(big(in[i + n])) << 22) +
                                (static_cast<uint64_t>(big(in[i + 2 * n])) << 44));
}

inline float as_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t as_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Bits of v * 2^places, for any number of places.
inline uint32_t shifted(uint32_t v, int places) {
  if (places >= 0) return places < 32 ? v << places : 0;
  return places > -32 ? v >> -places : 0;
}
inline uint64_t shifted(uint64_t v, int places) {
  if (places >= 0) return places < 64 ? v << places : 0;
  return places > -64 ? v >> -places : 0;
}

template <typename T, typename Bits, int kMantissa>
void exact_limb(const T* __restrict x, size_t n, int shift, uint32_t mask, uint32_t* __restrict words) {
  constexpr Bits one = Bits{1} << kMantissa;
  for (size_t i = 0; i < n; ++i) {
    Bits bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    const bool negative = bits >> (8 * sizeof(Bits) - 1);
    bits &= static_cast<Bits>(~Bits{0}) >> 1;
    const int field = static_cast<int>(bits >> kMantissa);
    const Bits mantissa = (bits & (one - 1)) | (field ? one : 0);
    const uint32_t limb = static_cast<uint32_t>(shifted(mantissa, (field ? field : 1) - shift)) & mask;
    words[i] = big(negative ? 0 - limb : limb);
  }
}

void exact_limb_f32(const float* __restrict x, size_t n, int shift, uint32_t mask, uint32_t* __restrict words) {
  size_t i = 0;
#if defined(__AVX2__)
  const Ints one = all(0x00800000u), first = all(1u);
  for (; i + kWidth <= n; i += kWidth) {
    const Ints bits = load(reinterpret_cast<const uint32_t*>(x) + i);
    const Ints magnitude = both(bits, all(0x7fffffffu));
    const Ints field = right<23>(magnitude);
    const Ints mantissa = either(both(magnitude, all(0x007fffffu)), both(one, larger_than_zero(field)));
    const Ints places = add(larger(field, first), all(static_cast<uint32_t>(-shift)));
    // Shifts by 32 places and more give 0, and negative numbers are such.
    const Ints limb = both(either(left(mantissa, places), right(mantissa, subtract(all(0u), places))), all(mask));
    const Ints sign = right_signed<31>(bits);
    store(words + i, swapped(subtract(one_of(limb, sign), sign)));
  }
#endif
  exact_limb<float, uint32_t, 23>(x + i, n - i, shift, mask, words + i);
}

inline int32_t word_at(const uint32_t* words, size_t i) { return static_cast<int32_t>(big(words[i])); }
inline uint32_t magnitude_of(int32_t v) { return v < 0 ? 0u - static_cast<uint32_t>(v) : static_cast<uint32_t>(v); }

size_t dequantize_large(const uint32_t* __restrict sums, size_t n, uint32_t least, ScaleF s, float* __restrict x,
                        [[maybe_unused]] bool nontemporal) {
  size_t i = 0;
  if (s.f2 != 1.0f) return 0;
#if defined(__AVX2__)
  const Ints bound = all(least);
  const auto some = [&]<size_t kVectors>(auto&& write) {  // false if one is small
    Ints sum[kVectors], smallest = bound;
    for (size_t j = 0; j < kVectors; ++j) {
      sum[j] = swapped(load(sums + i + j * kWidth));
      smallest = smaller(smallest, magnitude(sum[j]));
    }
    if (smaller_lanes(smallest, bound)) return false;
    for (size_t j = 0; j < kVectors; ++j) write(x + i + j * kWidth, multiply(to_floats(sum[j]), all(s.f1)));
    return true;
  };
  const auto keep = [](float* at, Floats v) { store(at, v); };
  constexpr size_t kLines = 2 * kLine;
  if (nontemporal && n >= kLine && reinterpret_cast<uintptr_t>(x) % sizeof *x == 0) {
    if (const size_t past = reinterpret_cast<uintptr_t>(x) % (4 * kLine) / 4; past > 0) {
      if (!some.template operator()<kLine / kWidth>(keep)) return 0;
      i = kLine - past;
    }
    for (; i + kLines <= n; i += kLines)
      if (!some.template operator()<kLines / kWidth>([](float* at, Floats v) { stream(at, v); })) return i;
  }
  for (; i + kLines <= n; i += kLines) {
    if (n > kLong) ahead_to_write(x + i), ahead_to_write(x + i + kLine);
    if (!some.template operator()<kLines / kWidth>(keep)) return i;
  }
  for (; i + kWidth <= n; i += kWidth)
    if (!some.template operator()<1>(keep)) return i;
#endif
  for (; i < n; ++i) {
    const int32_t sum = word_at(sums, i);
    if (magnitude_of(sum) < least) return i;
    x[i] = static_cast<float>(sum) * s.f1;
  }
  return n;
}

uint32_t small_sums32(const uint32_t* __restrict sums, size_t n, uint32_t least, uint32_t* __restrict small,
                      uint32_t* __restrict zero) {
  size_t i = 0;
  uint32_t found = 0;
#if defined(__AVX2__)
  constexpr size_t kVectors = 32 / kWidth;
  const Ints bound = all(least), one = all(1u), most = all(0x7fffffffu);
  for (; i + 32 <= n; i += 32) {
    Ints magnitudes[kVectors], smallest = bound;
    for (size_t j = 0; j < kVectors; ++j) {
      magnitudes[j] = smaller(magnitude(swapped(load(sums + i + j * kWidth))), most);  // that of -2^31 is no int32
      smallest = smaller(smallest, magnitudes[j]);
    }
    if (!smaller_lanes(smallest, bound)) continue;
    found |= 1u << (i / 32);
    for (size_t j = 0; j < kVectors; ++j) {
      small[i / 32] |= smaller_lanes(magnitudes[j], bound) << (j * kWidth);
      zero[i / 32] |= smaller_lanes(magnitudes[j], one) << (j * kWidth);
    }
  }
#endif
  for (; i < n; ++i) {
    const int32_t sum = word_at(sums, i);
    if (magnitude_of(sum) >= least) continue;
    found |= 1u << (i / 32);
    set_bit(small, i);
    if (sum == 0) set_bit(zero, i);
  }
  return found;
}

uint32_t large32(const float* x, float least, uint32_t* nonzero) {
  uint32_t large = 0, bits = 0;
#if defined(__AVX2__)
  uint32_t bound_bits;  // magnitudes compare as integers do
  __builtin_memcpy(&bound_bits, &least, sizeof bound_bits);
  const Ints bound = all(bound_bits - 1);
  for (size_t i = 0; i < 32; i += kWidth) {
    const Ints v = both(load(reinterpret_cast<const uint32_t*>(x) + i), all(0x7fffffffu));
    bits |= smaller_lanes(all(0u), v) << i;
    large |= smaller_lanes(bound, v) << i;
  }
#else
  for (size_t i = 0; i < 32; ++i) {
    bits |= static_cast<uint32_t>(x[i] != 0) << i;
    large |= static_cast<uint32_t>(x[i] >= least || x[i] <= -least) << i;
  }
#endif
  *nonzero = bits;
  return large;
}

uint32_t small_sums64(const uint32_t* __restrict sums, size_t stride, size_t n, int places, int64_t least,
                      uint32_t* __restrict small, uint32_t* __restrict zero) {
  uint32_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t upper = (int64_t{word_at(sums, i + 2 * stride)} << places) + word_at(sums, i + stride);
    if (upper >= least || upper <= -least) continue;
    found |= 1u << (i / 32);
    set_bit(small, i);
    if ((upper << places) + word_at(sums, i) == 0) set_bit(zero, i);
  }
  return found;
}

void exact_pair_f32(const uint32_t* __restrict low, const uint32_t* __restrict high, size_t n, int places, int bits,
                    double divisor, double scale, float* __restrict x, bool nontemporal) {
  if (bits > 53) {
    for (size_t i = 0; i < n; ++i) {
      const float rounded = static_cast<float>((int64_t{word_at(high, i)} << places) + word_at(low, i));
      x[i] = static_cast<float>(static_cast<double>(rounded) * scale);
    }
    return;
  }
  const double times = static_cast<double>(int64_t{1} << places);
  const auto sum = [=](size_t i) { return static_cast<double>(word_at(high, i)) * times + static_cast<double>(word_at(low, i)); };
  if (divisor == 1.0) return each_written(x, n, nontemporal, [=](size_t i) { return static_cast<float>(sum(i) * scale); });
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(sum(i) / divisor * scale);
}

void exact_triple_f64(const uint32_t* __restrict low, const uint32_t* __restrict middle, const uint32_t* __restrict high, size_t n,
                      int places, ScaleD s, double* __restrict x) {
  constexpr int kCut = 20;
  const double times = static_cast<double>(int64_t{1} << (kCut + places));
  for (size_t i = 0; i < n; ++i) {
    const int64_t upper = (int64_t{word_at(high, i)} << places) + word_at(middle, i);
    const int64_t lower = ((upper & ((int64_t{1} << kCut) - 1)) << places) + word_at(low, i);
    // Both are doubles, so that only their sum is rounded.
    x[i] = ((static_cast<double>(upper >> kCut) * times + static_cast<double>(lower)) * s.f1) * s.f2;
  }
}

// Integers of more than 24 bits to floats with an odd last bit if they are not floats: rounding them to fewer bits is then as if
// at once.
void odd_f32_be(const uint32_t* __restrict words, size_t n, ScaleF s, float* __restrict x) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t word = big(words[i]), sign = word >> 31 ? ~0u : 0u, magnitude = (word ^ sign) - sign;
    const uint32_t odd = (magnitude & ~0xffu) | (magnitude & 0xffu ? 0x80u : 0u);
    const uint32_t kept = magnitude < 1u << 24 ? magnitude : odd;
    x[i] = (static_cast<float>(static_cast<int32_t>((kept ^ sign) - sign)) * s.f1) * s.f2;
  }
}

inline float one_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return as_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return as_float(sign | ((magnitude << 13) + 0x38000000u));
  return as_float(sign | as_bits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f));
}

inline uint16_t to_f16(float x) {
  const uint32_t bits = as_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds past the largest finite value
  if (magnitude < 0x38800000u) {  // subnormal: let the float adder round at 2^-24
    const float rounded = as_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (as_bits(rounded) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

void widen_f16(const uint16_t* __restrict x, size_t n, float* __restrict out) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
  for (; i < n; ++i) out[i] = one_f16(x[i]);
}

void narrow_f16(const float* __restrict x, size_t n, uint16_t* __restrict out) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
#endif
  for (; i < n; ++i) out[i] = to_f16(x[i]);
}

void widen_bf16(const uint16_t* __restrict x, size_t n, float* __restrict out) {
  for (size_t i = 0; i < n; ++i) out[i] = as_float(static_cast<uint32_t>(x[i]) << 16);
}

void narrow_bf16(const float* __restrict x, size_t n, uint16_t* __restrict out) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = as_bits(x[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    out[i] = static_cast<uint16_t>(nan ? 0x7fc0u : rounded);
  }
}

void pad_be(const uint32_t* words, const uint32_t* plus, const uint32_t* minus, size_t n, uint32_t* to) {
  if (plus && minus) {
    for (size_t i = 0; i < n; ++i) to[i] = big(big(words[i]) + big(plus[i]) - big(minus[i]));
  } else if (plus) {
    for (size_t i = 0; i < n; ++i) to[i] = big(big(words[i]) + big(plus[i]));
  } else {
    for (size_t i = 0; i < n; ++i) to[i] = big(big(words[i]) - big(minus[i]));
  }
}

}  // namespace

const LaneKernels KERNELS = {
    scan32<false>, scan32<true>, scan<uint64_t, 0x8000000000000000u>, scan<uint16_t, 0x8000u>,
    dequantize_large, small_sums32, small_sums64, large32,
    scan_words, count_bits,
    quantize<float, int32_t>, quantize_f32_be, quantize_f64, quantize<double, int64_t>, dither<float>, dither<double>,
    dequantize<int32_t, float>, dequantize_f32_be, dequantize<int32_t, double>, dequantize<int64_t, double>,
    sum_f32, copy_nontemporal, add_f32, subtract_f32, pack32, unpack32,
    dither_lane, add_lane, dequantize_lane<16>, dequantize_lane<8>, unpack_lane<16>, unpack_lane<8>,
    dither_words<16>, dither_words<8>, dequantize_words<16>, dequantize_words<8>, flush,
    pack_limbs, unpack_limbs, exact_limb_f32, exact_limb<double, uint64_t, 52>, cut_off_f32, exact_pair_f32, exact_triple_f64, odd_f32_be, widen_f16, narrow_f16, widen_bf16, narrow_bf16,
    weighted_sum_be, quantize_be<true>, dequantize_be<true>, pad_be,
};

}  // namespace switchagg
