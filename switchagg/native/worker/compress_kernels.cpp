// Compiled once for each instruction set (KERNELS); plain loops that the compiler turns into vectors.
#include "switchagg/native/worker/compress_kernels.h"

namespace switchagg {
namespace {

inline uint32_t draw(DrawKey key, uint32_t i) {
  uint32_t h = i * 0x9E3779B1u + key.first;
  h ^= h >> 16;
  h *= 0x7FEB352Du;
  h ^= h >> 15;
  h += key.second;
  h *= 0x846CA68Bu;
  return h ^ h >> 16;
}

inline float uniform(uint32_t h, float) { return static_cast<float>(static_cast<int32_t>(h >> 8)) * 0x1p-24f; }
inline double uniform(uint32_t h, double) { return static_cast<double>(h) * 0x1p-32; }
inline float lower(float v) { return __builtin_floorf(v); }
inline double lower(double v) { return __builtin_floor(v); }

template <typename T>
size_t round(const T* __restrict x, size_t n, T unit, T top, DrawKey key, uint32_t index, int32_t* __restrict q) {
  uint32_t cut = 0;  // of at most one chunk's elements
  for (size_t i = 0; i < n; ++i) {
    const T v = x[i] / unit;
    cut += static_cast<uint32_t>((v > top) | (v < -top));
    T y = lower(v + uniform(draw(key, index + static_cast<uint32_t>(i)), T{}));
    y = y > top ? top : y;
    y = y < -top ? -top : y;
    q[i] = static_cast<int32_t>(y);
  }
  return cut;
}

template <typename T>
void scale(const int32_t* __restrict q, size_t n, T unit, T* __restrict x) {
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<T>(q[i]) * unit;
}

template <int kBits>
void pack_lanes(const int32_t* __restrict q, size_t words, int bits, uint32_t* __restrict out) {
  const int width = kBits ? kBits : bits;
  const int lanes = 32 / width;
  for (size_t w = 0; w < words; ++w) {
    uint32_t word = 0;
    for (int lane = 0; lane < lanes; ++lane) word += static_cast<uint32_t>(q[w * lanes + lane]) << (width * lane);
    out[w] = word;
  }
}

// Sign-extends the lowest lane; subtracting it returns what it borrowed from the next one.
template <int kBits>
void unpack_lanes(const uint32_t* __restrict in, size_t words, int bits, int32_t* __restrict q) {
  const int width = kBits ? kBits : bits;
  const int lanes = 32 / width;
  for (size_t w = 0; w < words; ++w) {
    uint32_t rest = in[w];
    for (int lane = 0; lane < lanes; ++lane) {
      const int32_t low = static_cast<int32_t>(rest << (32 - width)) >> (32 - width);
      q[w * lanes + lane] = low;
      rest = (rest - static_cast<uint32_t>(low)) >> width;
    }
  }
}

template <int kBits>
struct Width {
  static constexpr int bits = kBits;
};

// Calls f with the width as a constant where loops with a constant width are worth having.
template <typename F>
inline __attribute__((always_inline)) void by_width(int bits, F&& f) {
  switch (bits) {
    case 2: return f(Width<2>{});
    case 4: return f(Width<4>{});
    case 8: return f(Width<8>{});
    case 16: return f(Width<16>{});
    default: return f(Width<0>{});
  }
}

void pack(const int32_t* q, size_t words, int bits, uint32_t* out) {
  by_width(bits, [=](auto width) { pack_lanes<decltype(width)::bits>(q, words, bits, out); });
}

void unpack(const uint32_t* in, size_t words, int bits, int32_t* q) {
  by_width(bits, [=](auto width) { unpack_lanes<decltype(width)::bits>(in, words, bits, q); });
}

uint64_t square(const int32_t* __restrict q, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<uint32_t>(q[i] * q[i]);
  return sum;
}

// Adding this to a double below 2^51 in magnitude leaves its low 32 bits in the low bits of the sum.
constexpr double kShift = 0x1.8p52;

inline uint32_t low_bits(double whole) {
  const double shifted = whole + kShift;
  uint64_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  return static_cast<uint32_t>(bits);
}

template <typename T>
inline double far_whole(T x, double unit, uint32_t h, bool* usable) {
  const double v = static_cast<double>(x) / unit;
  *usable = (v > -0x1p51) & (v < 0x1p51);  // not NaN either
  return __builtin_floor((*usable ? v : 0.0) + uniform(h, double{}));
}

template <typename T>
size_t low_bits_of(const T* __restrict x, size_t n, double unit, DrawKey key, uint32_t index, int32_t* __restrict low) {
  uint32_t unusable = 0;
  for (size_t i = 0; i < n; ++i) {
    bool usable;
    const double y = far_whole(x[i], unit, draw(key, index + static_cast<uint32_t>(i)), &usable);
    unusable += !usable;
    low[i] = static_cast<int32_t>(low_bits(y));
  }
  return unusable;
}

template <typename T>
void rounded(const T* __restrict x, size_t n, double unit, DrawKey key, uint32_t index, T* __restrict out) {
  for (size_t i = 0; i < n; ++i) {
    bool usable;
    const double y = far_whole(x[i], unit, draw(key, index + static_cast<uint32_t>(i)), &usable);
    out[i] = static_cast<T>(y * unit);
  }
}

void expect(const double* __restrict reference, size_t n, double scale, double* __restrict near, int32_t* __restrict low) {
  for (size_t i = 0; i < n; ++i) {
    near[i] = __builtin_rint(reference[i] * scale);
    low[i] = static_cast<int32_t>(low_bits(near[i]));
  }
}

template <int kBits>
void unpack_lanes_near(const uint32_t* __restrict in, size_t words, int bits, const int32_t* __restrict low, int32_t* __restrict off) {
  const int width = kBits ? kBits : bits;
  const int lanes = 32 / width;
  for (size_t w = 0; w < words; ++w) {
    uint32_t rest = in[w];
    for (int lane = 0; lane < lanes; ++lane) {
      rest -= static_cast<uint32_t>(low[w * lanes + lane]);
      const int32_t over = static_cast<int32_t>(rest << (32 - width)) >> (32 - width);
      off[w * lanes + lane] = over;
      rest = static_cast<uint32_t>(static_cast<int32_t>(rest - static_cast<uint32_t>(over)) >> width);
    }
  }
}

void unpack_near(const uint32_t* in, size_t words, int bits, const int32_t* low, int32_t* off) {
  by_width(bits, [=](auto width) { unpack_lanes_near<decltype(width)::bits>(in, words, bits, low, off); });
}

template <typename T>
int32_t sum_near(const double* __restrict near, const int32_t* __restrict off, size_t n, double unit, double workers,
               T* __restrict sum, double* __restrict mean) {
  int32_t farthest = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t size = off[i] < 0 ? -off[i] : off[i];
    farthest = size > farthest ? size : farthest;
    const double total = (near[i] + static_cast<double>(off[i])) * unit;
    sum[i] = static_cast<T>(total);
    mean[i] = total / workers;
  }
  return farthest;
}

// One stage, with the same places in every stage: after log2(n) of them the Hadamard transform is in its natural order.
template <typename T>
void butterflies(const T* __restrict in, size_t n, T* __restrict out) {
  const size_t half = n / 2;
  for (size_t i = 0; i < half; ++i) {
    const T a = in[i], b = in[i + half];
    out[2 * i] = a + b;
    out[2 * i + 1] = a - b;
  }
}

// Transforms the first block of `scratch`; returns which of its two blocks has the result.
template <typename T>
T* hadamard(T* scratch, size_t block) {
  T *from = scratch, *to = scratch + block;
  for (size_t stages = block; stages > 1; stages /= 2) {
    butterflies(from, block, to);
    T* const done = to;
    to = from;
    from = done;
  }
  return from;
}

template <typename T>
inline T with_sign(T x, DrawKey key, uint32_t index) {
  return draw(key, index) >> 31 ? -x : x;
}

template <typename T>
void rotate(const T* __restrict x, size_t n, size_t block, DrawKey key, uint32_t index, T factor, T* __restrict scratch,
            T* __restrict out) {
  for (size_t i = 0; i < n; ++i) scratch[i] = with_sign(x[i], key, index + static_cast<uint32_t>(i));
  for (size_t i = n; i < block; ++i) scratch[i] = 0;
  const T* const y = hadamard(scratch, block);
  for (size_t i = 0; i < block; ++i) out[i] = y[i] * factor;
}

template <typename T>
void unrotate(const T* __restrict y, size_t n, size_t block, DrawKey key, uint32_t index, T factor, T* __restrict scratch,
              T* __restrict x) {
  for (size_t i = 0; i < block; ++i) scratch[i] = y[i];
  const T* const z = hadamard(scratch, block);
  for (size_t i = 0; i < n; ++i) x[i] = with_sign(z[i] * factor, key, index + static_cast<uint32_t>(i));
}

uint32_t check(const int32_t* __restrict low, const int32_t* __restrict off, const uint32_t* __restrict factors, size_t n) {
  uint32_t sum = 0;
  if (off) {
    for (size_t i = 0; i < n; ++i) sum += (static_cast<uint32_t>(low[i]) + static_cast<uint32_t>(off[i])) * factors[i];
  } else {
    for (size_t i = 0; i < n; ++i) sum += static_cast<uint32_t>(low[i]) * factors[i];
  }
  return sum;
}

}  // namespace

const CompressKernels KERNELS = {
    {round<float>, scale<float>, low_bits_of<float>, rounded<float>, sum_near<float>, rotate<float>, unrotate<float>},
    {round<double>, scale<double>, low_bits_of<double>, rounded<double>, sum_near<double>, rotate<double>, unrotate<double>},
    pack, unpack, square, expect, unpack_near, check,
};

}  // namespace switchagg
