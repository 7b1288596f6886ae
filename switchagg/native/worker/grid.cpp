#include "switchagg/native/worker/grid.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "switchagg/native/worker/codec_kernels.h"

namespace switchagg {

extern const GridKernels grid_kernels_base;
#ifdef SWITCHAGG_X86
extern const GridKernels grid_kernels_v3, grid_kernels_v4;
#endif

const GridKernels& choose_grid_kernels() {
#ifdef SWITCHAGG_X86
  // The same instruction set as the codec's, which has looked at the processor and at what was asked for.
  for (const GridKernels* level : {&grid_kernels_v4, &grid_kernels_v3}) {
    if (std::strcmp(level->name, choose_codec_kernels().name) == 0) return *level;
  }
#endif
  return grid_kernels_base;
}

namespace {

constexpr size_t kChunkWords = 1024;
constexpr int kNarrow = 16;  // bits; wider lanes are words of their own

size_t lanes_of(int bits) { return bits > kNarrow ? 1 : 32 / static_cast<size_t>(bits); }

size_t round(const GridKernels& k, const float* x, size_t n, float unit, float top, DrawKey key, uint32_t at, int32_t* q) {
  return k.round_f32(x, n, unit, top, key, at, q);
}
size_t round(const GridKernels& k, const double* x, size_t n, double unit, double top, DrawKey key, uint32_t at, int32_t* q) {
  return k.round_f64(x, n, unit, top, key, at, q);
}
void scale(const GridKernels& k, const int32_t* q, size_t n, float unit, float* x) { k.scale_f32(q, n, unit, x); }
void scale(const GridKernels& k, const int32_t* q, size_t n, double unit, double* x) { k.scale_f64(q, n, unit, x); }

// Calls f(from, n, unit) for each run of elements in [from, to) with one unit.
template <typename T, typename F>
void runs(const Grid& grid, size_t from, size_t to, F f) {
  const T* units = static_cast<const T*>(grid.units);
  for (size_t i = from; i < to;) {
    const size_t end = std::min(to, (i / grid.block + 1) * grid.block);
    f(i, end - i, units[i / grid.block]);
    i = end;
  }
}

}  // namespace

template <typename T>
uint64_t to_words(const T* x, size_t count, const Grid& grid, int32_t top, DrawKey key, uint32_t* words) {
  const GridKernels& k = choose_grid_kernels();
  const size_t lanes = lanes_of(grid.bits), chunk = kChunkWords * lanes;
  const auto q = std::make_unique<int32_t[]>(chunk);
  T limit = static_cast<T>(top);
  if (static_cast<double>(limit) > top) limit = std::nextafter(limit, T{0});  // a float may have rounded it up
  uint64_t cut = 0;
  for (size_t at = 0; at < count; at += chunk) {
    const size_t n = std::min(chunk, count - at), used = (n + lanes - 1) / lanes;
    runs<T>(grid, at, at + n, [&](size_t i, size_t run, T unit) {
      if (unit > 0 && std::isfinite(unit)) {
        cut += round(k, x + i, run, unit, limit, key, static_cast<uint32_t>(i), q.get() + (i - at));
      } else {
        std::fill_n(q.get() + (i - at), run, 0);
      }
    });
    std::fill(q.get() + n, q.get() + used * lanes, 0);
    if (lanes == 1) {
      std::memcpy(words, q.get(), 4 * used);
    } else {
      k.pack(q.get(), used, grid.bits, words);
    }
    words += used;
  }
  return cut;
}

template <typename T>
void from_words(const uint32_t* words, size_t count, const Grid& grid, T* x) {
  const GridKernels& k = choose_grid_kernels();
  const size_t lanes = lanes_of(grid.bits), chunk = kChunkWords * lanes;
  const auto q = std::make_unique<int32_t[]>(chunk);
  for (size_t at = 0; at < count; at += chunk) {
    const size_t n = std::min(chunk, count - at), used = (n + lanes - 1) / lanes;
    if (lanes == 1) {
      std::memcpy(q.get(), words, 4 * used);
    } else {
      k.peel(words, used, grid.bits, q.get());
    }
    runs<T>(grid, at, at + n, [&](size_t i, size_t run, T unit) { scale(k, q.get() + (i - at), run, unit, x + i); });
    words += used;
  }
}

uint64_t square_of_words(const uint32_t* words, size_t count, int bits) {
  const GridKernels& k = choose_grid_kernels();
  const size_t lanes = lanes_of(bits), chunk = kChunkWords * lanes;
  const auto q = std::make_unique<int32_t[]>(chunk);
  uint64_t sum = 0;
  for (size_t at = 0; at < count; at += chunk) {
    const size_t n = std::min(chunk, count - at), used = (n + lanes - 1) / lanes;
    k.peel(words, used, bits, q.get());
    sum += k.square(q.get(), n);
    words += used;
  }
  return sum;
}

template uint64_t to_words<float>(const float*, size_t, const Grid&, int32_t, DrawKey, uint32_t*);
template uint64_t to_words<double>(const double*, size_t, const Grid&, int32_t, DrawKey, uint32_t*);
template void from_words<float>(const uint32_t*, size_t, const Grid&, float*);
template void from_words<double>(const uint32_t*, size_t, const Grid&, double*);

}  // namespace switchagg
